"""What has to be there before a server is ready."""

from __future__ import annotations


class Readiness:
    def __init__(self, *parts: str) -> None:
        self._missing = list(parts)

    def done(self, part: str) -> None:
        if part in self._missing:
            self._missing.remove(part)

    def lost(self, part: str) -> None:
        if part not in self._missing:
            self._missing.append(part)

    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)
