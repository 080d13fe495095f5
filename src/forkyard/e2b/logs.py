"""What happened to a sandbox: its journal, readable for some time after its end too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query
from fastapi.responses import Response

from forkyard.e2b.deps import Reader, SandboxId, Service
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer
from forkyard.e2b.schemas.logs import (
    LogLevel,
    SandboxLog,
    SandboxLogEntry,
    SandboxLogs,
    SandboxLogsV2Response,
)
from forkyard.sandboxes.journal import JournalEntry

MAX_ENTRIES = 1000
LOGGER = "sandbox"
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most important."""

router = APIRouter(tags=["logs"], route_class=ApiRoute, responses=ERRORS)

Milliseconds = Annotated[int, Query(ge=0, le=2**53)]


@router.get("/sandboxes/{sandbox_id}/logs", response_model=SandboxLogs, deprecated=True)
async def list_logs_v1(
    sandbox_id: SandboxId,
    principal: Reader,
    sandboxes: Service,
    start: Annotated[Milliseconds, Query(description="Unix time in milliseconds, included")] = 0,
    limit: Annotated[int, Query(ge=0, le=2**31 - 1, description="Most entries; 1000 at most")] = MAX_ENTRIES,
) -> Response:
    """The entries from `start` on, oldest first."""
    entries = await sandboxes.logs(principal.team_id, sandbox_id)
    chosen = select(entries, cursor=start, limit=min(limit, MAX_ENTRIES))
    return answer(
        SandboxLogs(
            logs=[SandboxLog(timestamp=entry.at, line=log_line(entry)) for entry in chosen],
            logEntries=[log_entry(entry) for entry in chosen],
        )
    )


@router.get("/v2/sandboxes/{sandbox_id}/logs", response_model=SandboxLogsV2Response)
async def list_logs(
    sandbox_id: SandboxId,
    principal: Reader,
    sandboxes: Service,
    cursor: Annotated[
        Milliseconds | None, Query(description="Unix time in milliseconds to go on from, included")
    ] = None,
    limit: Annotated[int, Query(ge=0, le=MAX_ENTRIES)] = MAX_ENTRIES,
    direction: Annotated[
        Literal["forward", "backward"], Query(description="forward: oldest first")
    ] = "backward",
    level: Annotated[LogLevel, Query(description="Least important level")] = "debug",
    search: Annotated[str, Query(max_length=256, description="Text in the message")] = "",
) -> Response:
    """Entries of the log, newest first unless `direction` is forward."""
    entries = await sandboxes.logs(principal.team_id, sandbox_id)
    chosen = select(
        entries, cursor=cursor, limit=limit, backward=direction == "backward", level=level, search=search
    )
    return answer(SandboxLogsV2Response(logs=[log_entry(entry) for entry in chosen]))


def select(
    entries: Sequence[JournalEntry],
    *,
    cursor: int | None,
    limit: int,
    backward: bool = False,
    level: LogLevel = "debug",
    search: str = "",
) -> list[JournalEntry]:
    """Up to `limit` entries from `cursor` (milliseconds, included) on; `entries` are oldest first.

    An entry of the cursor's millisecond is given again rather than lost.
    """
    wanted = LEVELS[LEVELS.index(level) :]

    def fits() -> Iterator[JournalEntry]:
        for entry in reversed(entries) if backward else entries:
            at = int(entry.at.timestamp() * 1000)
            if cursor is not None and (at > cursor if backward else at < cursor):
                continue
            if level_of(entry) in wanted and search in entry.message:
                yield entry

    return list(islice(fits(), limit))


def level_of(entry: JournalEntry) -> LogLevel:
    return entry.level if entry.level in LEVELS else "info"


def log_entry(entry: JournalEntry) -> SandboxLogEntry:
    fields = {_text(name): _text(value) for name, value in entry.fields.items()}
    return SandboxLogEntry(
        timestamp=entry.at, level=level_of(entry), message=_text(entry.message), fields=fields
    )


def log_line(entry: JournalEntry) -> str:
    """The entry as JSON text. What the entry is about cannot stand in for its level or logger."""
    own = {"level": level_of(entry), "logger": LOGGER, "message": entry.message}
    return json.dumps({**entry.fields, **own})


def _text(text: str) -> str:
    """What a sandbox said may hold halves of characters, which cannot be sent."""
    return text.encode(errors="replace").decode()
