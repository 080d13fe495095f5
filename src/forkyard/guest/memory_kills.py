"""What the out-of-memory killer inside says that it did. It comes out of a sandbox: hostile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """A process that was killed because memory ran out; what it says comes from inside."""

    pid: int
    name: str
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryKills:
    kills: tuple[MemoryKill, ...]
    dropped: int
    """Further ones of which nothing is known."""


MAX_KILLS = 64
_MAX_NAME = 64
_MAX_NUMBER = 2**53


def parse_memory_kills(data: bytes) -> MemoryKills:
    """Nothing in it is believed: names are cut, numbers bounded, what has another form is left out."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return MemoryKills((), 0)
    answer = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    listed = answer.get("kills")
    items = cast(list[Any], listed) if isinstance(listed, list) else []
    kills = [_memory_kill(cast(dict[str, Any], item)) for item in items[:MAX_KILLS] if isinstance(item, dict)]
    return MemoryKills(tuple(kills), max(0, len(items) - MAX_KILLS) + _number(answer.get("dropped")))


def _memory_kill(item: dict[str, Any]) -> MemoryKill:
    name = item.get("name")
    text = name[:_MAX_NAME] if isinstance(name, str) else ""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return MemoryKill(_number(item.get("pid")), shown, _number(item.get("rss_bytes")))


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MAX_NUMBER else 0
