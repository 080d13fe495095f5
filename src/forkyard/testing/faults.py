"""Misbehaviour on demand: every call a fake gets goes through one gate, where it can be slow, hang, fail or die.

>>> host.faults.add(fail("driver.checkpoint", HostFull()))
>>> host.faults.add(fail("driver.destroy", DriverError("busy"), nth=2, times=3))
>>> hanging = host.faults.add(hold("guest.init"))
>>> hanging.reached.wait(); hanging.release()
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


class Crashed(BaseException):
    """The server process is dead. Stands for SIGKILL: no handler of the server may have an effect after it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a fake got: `driver.restore`, and the machine, sandbox or snapshot it was about."""

    name: str
    subject: str


@dataclass(eq=False)
class Fault:
    """What happens to the `nth` matching call, and to `times` - 1 more after it (0: to all)."""

    call: str
    """Pattern of the call's name, as in `driver.*`."""
    nth: int = 1
    times: int = 1
    after: bool = False
    """Act when the call has had its effect: the caller is told that it failed although it did not."""
    subject: str = "*"
    error: BaseException | None = None
    effect: Callable[[Call], None] | None = None
    """Run at that moment: a machine that dies, a disk that fills up."""
    held: bool = False
    """The call waits until `release`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hits: int = 0
    _seen: int = 0
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, call: Call) -> bool:
        """Counts the call if it matches; whether it is one to act on."""
        if not (fnmatchcase(call.name, self.call) and fnmatchcase(call.subject, self.subject)):
            return False
        self._seen += 1
        return self._seen >= self.nth and (self.times == 0 or self._seen < self.nth + self.times)

    async def act(self, call: Call) -> None:
        self.hits += 1
        self.reached.set()
        if self.held:
            await self._go_on.wait()
        if self.effect is not None:
            self.effect(call)
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        """Let a held call go on."""
        self._go_on.set()


def fail(call: str, error: BaseException, *, nth: int = 1, times: int = 1, subject: str = "*") -> Fault:
    """The call fails and has no effect."""
    return Fault(call, nth, times, subject=subject, error=error)


def fail_after(call: str, error: BaseException, *, nth: int = 1, times: int = 1, subject: str = "*") -> Fault:
    """The call has its effect, and fails for its caller."""
    return Fault(call, nth, times, after=True, subject=subject, error=error)


def hold(call: str, *, nth: int = 1, times: int = 1, after: bool = False, subject: str = "*") -> Fault:
    """The call takes until the test releases it."""
    return Fault(call, nth, times, after=after, subject=subject, held=True)


class Faults:
    """The faults of a host, and a log of every call that was made on it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._faults: list[Fault] = []
        self.scheduler: random.Random | None = None
        """With one, each call lets other tasks run a random number of times before and after it."""

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Take all faults away, letting held calls go on."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    def names(self, *patterns: str) -> list[str]:
        """Names of the calls so far, those that match a pattern, in order."""
        return [c.name for c in self.calls if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]

    def plan(self, call: Call) -> tuple[list[Fault], list[Fault]]:
        """Log the call; what happens before its effect, and after."""
        self.calls.append(call)
        hits = [fault for fault in self._faults if fault.wants(call)]
        return [f for f in hits if not f.after], [f for f in hits if f.after]

    async def let_others_run(self) -> None:
        passes = 1 if self.scheduler is None else self.scheduler.choice((0, 0, 1, 2, 5, 20))
        for _ in range(passes):
            await asyncio.sleep(0)


class Life:
    """One run of the server. After `die` everything it still tries raises Crashed and has no effect."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.dead = False
        self._die_at: tuple[str, int] | None = None
        self._passed: dict[str, int] = {}
        self.died = asyncio.Event()
        self.busy = 0
        """Calls in progress: as long as there are some, something outside the event loop may be waited for."""

    def die_at(self, point: str, nth: int = 1) -> None:
        """Die when the crash point is reached for the n-th time."""
        self._die_at = (point, nth)

    def die(self) -> None:
        self.dead = True
        self.died.set()

    def reach(self, point: str) -> None:
        """A hook for `base.crashpoints`. Raises Crashed."""
        self.check()
        self._passed[point] = self._passed.get(point, 0) + 1
        if self._die_at == (point, self._passed[point]):
            self.die()
            self.check()

    def passed(self, point: str) -> int:
        """How often a crash point was reached."""
        return self._passed.get(point, 0)

    def check(self) -> None:
        if self.dead:
            raise Crashed()

    @asynccontextmanager
    async def call(self, name: str, subject: str = "") -> AsyncGenerator[None]:
        """The gate: the body is the call's effect."""
        self.check()
        call = Call(name, subject)
        before, after = self.faults.plan(call)
        self.busy += 1
        try:
            await self.faults.let_others_run()
            for fault in before:
                await fault.act(call)
            self.check()
            yield
            for fault in after:
                await fault.act(call)
            await self.faults.let_others_run()
            self.check()
        finally:
            self.busy -= 1
