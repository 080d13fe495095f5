"""Tasks that outlive the call that started them: loops kept alive, operations not cut off."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from forkyard.base.backoff import Backoff
from forkyard.base.clock import Clock, SystemClock
from forkyard.base.logging import get_logger

T = TypeVar("T")

log = get_logger(__name__)

_STEADY = 60.0
"""A loop that ran for this many seconds before it failed starts again without a growing delay."""


class Supervisor:
    """Background loops that are started again when they fail, and cancelled together at the end.

    >>> async with Supervisor() as supervisor:
    ...     supervisor.start("expiry", expiry_loop)
    ...     await server.serve()
    """

    def __init__(
        self, clock: Clock | None = None, first_delay: float = 0.5, most_delay: float = 30.0
    ) -> None:
        """A failed loop starts again after `first_delay` seconds, doubled each time up to `most_delay`."""
        self._clock = clock or SystemClock()
        self._delays = (first_delay, most_delay)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}

    async def __aenter__(self) -> "Supervisor":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def start(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop()` until it returns; when it raises, log that and run it again after a delay.

        Raises RuntimeError when a loop of that name runs already.
        """
        if name in self._tasks:
            raise RuntimeError(f"a loop called {name} runs already")
        task = asyncio.create_task(self._keep(name, loop), name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda _task: self._tasks.pop(name, None))

    @property
    def running(self) -> list[str]:
        """Names of the loops that have not returned."""
        return sorted(self._tasks)

    def failures(self, name: str) -> int:
        """How often the loop of that name has failed."""
        return self._failures.get(name, 0)

    async def stop(self) -> None:
        """Cancel all loops and wait until they have ended. May be called twice."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a background loop failed while it was stopped", exc_info=result)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(*self._delays)
        while True:
            started = self._clock.monotonic()
            try:
                return await loop()
            except Exception:
                if self._clock.monotonic() - started > _STEADY:
                    backoff.reset()
                self._failures[name] = self.failures(name) + 1
                delay = backoff.next_delay()
                log.exception("a background loop failed", loop=name, again_in=round(delay, 3))
            await self._clock.sleep(delay)


class Operations:
    """Operations that go on when the caller who waits for them is cut off.

    They keep the caller's context variables, so that their log lines carry its request id.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run_detached(self, work: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Wait for `work` and return its result or raise its error; if we are cancelled, `work` is not.

        Then an error of it is logged, because nobody hears of it.
        """
        task = self.start(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run `work` as a task that is kept until it is done. The caller looks after its errors."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_logged(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run `work` with nobody waiting for it; an error is logged."""
        self.start(work, name).add_done_callback(_log_failure)

    async def drain(self, timeout: float) -> bool:
        """Wait `timeout` seconds for all operations, also those started meanwhile; True if all are done."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)
        return not self._tasks

    async def cancel(self) -> None:
        """Cancel what is still running, and what that starts while it ends, and wait for all of it."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Their callbacks take them out of the set.
            await asyncio.sleep(0)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("an operation failed that nobody waits for", operation=task.get_name(), exc_info=error)
