"""What happened to each sandbox, for its owner: one file of JSON lines a sandbox, bounded in size."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from forkyard.base.clock import Clock

MAX_BYTES = 2 << 20
"""Past this a file is cut to its newer half."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    at: datetime
    level: str
    """debug, info, warn or error."""
    message: str
    fields: dict[str, str] = field(default_factory=dict[str, str])


class Journal:
    """Writes never fail an operation: a journal that cannot be written is a lost line, not a lost sandbox."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock

    def write(self, sandbox_id: str, message: str, *, level: str = "info", **fields: object) -> None:
        entry = {
            "timestamp": self._clock.now().isoformat(),
            "level": level,
            "message": message,
            "fields": {key: str(value)[:1000] for key, value in fields.items()},
        }
        path = self._root / f"{sandbox_id}.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                too_large = file.tell() > MAX_BYTES
            if too_large:
                self._cut(path)
        except OSError:
            pass

    async def read(self, sandbox_id: str) -> list[JournalEntry]:
        """All entries, oldest first; lines that cannot be read are left out."""
        return await asyncio.to_thread(self._read, sandbox_id)

    async def remove(self, sandbox_ids: Collection[str]) -> None:
        """Remove the files of these sandboxes. Raises OSError."""
        await asyncio.to_thread(self._remove, sandbox_ids)

    def _remove(self, sandbox_ids: Collection[str]) -> None:
        for sandbox_id in sandbox_ids:
            (self._root / f"{sandbox_id}.jsonl").unlink(missing_ok=True)

    def _read(self, sandbox_id: str) -> list[JournalEntry]:
        entries: deque[JournalEntry] = deque(maxlen=20_000)
        try:
            with (self._root / f"{sandbox_id}.jsonl").open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        raw = json.loads(line)
                        entries.append(
                            JournalEntry(
                                datetime.fromisoformat(raw["timestamp"]),
                                raw["level"],
                                raw["message"],
                                raw["fields"],
                            )
                        )
                    except (ValueError, KeyError, TypeError):
                        continue
        except FileNotFoundError:
            pass
        return list(entries)

    def _cut(self, path: Path) -> None:
        data = path.read_bytes()
        newer = data[data.find(b"\n", len(data) // 2) + 1 :]
        replacement = path.with_suffix(".tmp")
        replacement.write_bytes(newer)
        replacement.replace(path)
