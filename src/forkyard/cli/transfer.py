"""Bytes on their way: how far they are, for a person at a terminal who has to wait."""

from __future__ import annotations

import asyncio
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

QUIET_S = 1.0
"""A transfer that takes no longer shows nothing."""


class Transfer:
    """One transfer; use it as a context manager, in an event loop."""

    def __init__(self, total: int | None) -> None:
        """`total` is the number of bytes that are expected, if that is known."""
        console = Console(stderr=True)
        self.bytes = 0
        """What has gone over."""
        self._progress = Progress(
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Transfer:
        self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._progress.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._progress.live.is_started:
            self._progress.stop()

    def add(self, count: int) -> None:
        """That many bytes more."""
        self.bytes += count
        self._progress.advance(self._task, count)
