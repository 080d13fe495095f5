"""Work that goes to threads done at once instead: what a test does then depends on nothing but its seed, and is faster.

Inside `without_threads()` SQLite statements, flushes of its log and `asyncio.to_thread` run in the event loop. With a
`VirtualTimeLoop` as well, nothing is left that takes time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import aiosqlite.core

from forkyard.storage import wal

T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """Runs what is submitted before `submit` returns."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "", **_: Any) -> None:
        super().__init__(1, thread_name_prefix)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _InlineQueue:
    """In the place of the queue to a connection's thread."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = item
        try:
            result = function()
        except BaseException as error:
            if future is not None and not future.done():
                future.set_exception(error)
        else:
            if future is not None and not future.done():
                future.set_result(result)


class _NoThread:
    """In the place of a connection's thread."""

    daemon = True

    def __init__(self, target: object = None, args: object = ()) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits: when nothing is ready its time jumps to the next timer."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            # A hair more than asked for: a timer that is due must be seen as such.
            self._loop.jump(timeout + 1e-9)
        if not ready and timeout is None:
            raise RuntimeError("everything waits for something that will never come")
        return ready


@contextmanager
def without_threads() -> Generator[None]:
    """For databases and threads used inside the block, which has to be entered before the event loop is used."""
    with (
        patch.object(aiosqlite.core, "SimpleQueue", _InlineQueue),
        patch.object(aiosqlite.core, "Thread", _NoThread),
        patch.object(wal, "ThreadPoolExecutor", InlineExecutor),
    ):
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        yield
