"""What rows share: one server at a time, by its settings, and the floor beside it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType

from benchmarks.floor import Floor
from benchmarks.server import Server


class Context:
    """Rows that ask for the same server one after another share it."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._stack = ExitStack()
        self._server: Server | None = None
        self._floor: Floor | None = None

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def server(self, *, warm: int, empty: int) -> Server:
        if self._server is None or (self._server.warm, self._server.empty) != (warm, empty):
            self.close_server()
            say(f"starting a server (warm {warm}, empty {empty})")
            self._server = self._stack.enter_context(Server(warm=warm, empty=empty))
        return self._server

    def floor(self) -> Floor:
        """Of the present server's files."""
        if self._server is None:
            raise RuntimeError("no server, no files for the floor")
        if self._floor is None:
            self._floor = self._stack.enter_context(
                Floor(self._server.data_dir / "node", self._server.shape())
            )
        return self._floor

    def close_server(self) -> None:
        self._stack.close()
        self._server = self._floor = None


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
