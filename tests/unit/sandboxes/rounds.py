"""One operation with one thing gone wrong, and what must hold afterwards. Used by the unit tests and the long runs."""

import asyncio
import errno
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress

from forkyard.base.crashpoints import KNOWN
from forkyard.base.errors import ForkyardError
from forkyard.guest.errors import GuestRefused, GuestUnreachable
from forkyard.host.errors import NoSpace
from forkyard.sandboxes.driver import DriverError, HostFull
from forkyard.storage.errors import DatabaseFull, DatabaseUnavailable
from forkyard.testing.faults import Crashed, Fault
from forkyard.testing.world import World, check_consistent
from tests.unit.sandboxes.operations import OPERATIONS, Operation, clear, nothing_is_lost, prepared

ERRORS: dict[str, tuple[BaseException, ...]] = {
    "driver": (DriverError("the driver failed"), HostFull(), RuntimeError("a bug")),
    "guest": (GuestUnreachable(), GuestRefused()),
    "store": (DatabaseUnavailable(), DatabaseFull()),
    "files": (OSError(errno.EIO, "the disk failed"), NoSpace()),
    "routes": (RuntimeError("a bug"),),
}

POINTS = sorted(
    p for p in KNOWN if p.partition(".")[0] in {"start", "resume", "pause", "capture", "fork", "kill"}
)


def points_of(operation: Operation) -> list[str]:
    """The crash points that an operation passes."""
    prefixes = {
        "create": ("start",),
        "pause": ("pause",),
        "pause-files": ("pause",),
        "resume": ("resume", "start"),
        "reboot": ("resume", "start"),
        "snapshot": ("capture",),
        "fork": ("capture", "fork", "start"),
        "kill": ("kill",),
        "kill-paused": ("kill",),
        "network": (),
    }[operation.name]
    skipped = {"start.claimed", "start.restored", "start.initialised"} if "resume" in prefixes else set()
    return [p for p in POINTS if p.partition(".")[0] in prefixes and p not in skipped]


CRASHES = [(operation, point) for operation in OPERATIONS for point in points_of(operation)]


def named(value: object) -> str:
    """Ids of test cases."""
    return value.name if isinstance(value, Operation) else str(value)


def some(items: Sequence[tuple[str, int]], count: int, seed: str) -> Sequence[tuple[str, int]]:
    """A few of them, always the same ones."""
    return items if len(items) <= count else random.Random(seed).sample(items, count)


async def calls_of(world: World, operation: Operation) -> list[tuple[str, int]]:
    """Every call that the operation makes, what it leaves to the background included: its name and the how-manieth."""
    sandbox = await prepared(world, operation)
    await operation.run(world, sandbox)
    await world.server.quiet()
    calls = list(numbered(world.host.faults.names()))
    await clear(world)
    return calls


def numbered(calls: list[str]) -> Iterator[tuple[str, int]]:
    seen: dict[str, int] = {}
    for call in calls:
        seen[call] = seen.get(call, 0) + 1
        yield call, seen[call]


def failing_once(call: str, nth: int, *, after: bool) -> Fault:
    errors = ERRORS[call.partition(".")[0]]
    return Fault(call, nth, after=after, error=errors[nth % len(errors)])


def failing_from(part: str, nth: int) -> Fault:
    return Fault(f"{part}.*", nth, times=0, error=ERRORS[part][0])


async def round_with(world: World, operation: Operation, fault: Fault) -> None:
    """The operation with this fault: then everything must be as documented, and work."""
    try:
        sandbox = await prepared(world, operation)
        world.host.faults.add(fault)
        error: BaseException | None = None
        try:
            await world.server.do(operation.run(world, sandbox))
        except (ForkyardError, OSError, RuntimeError) as raised:
            error = raised
        await world.server.tidy()
        await check_consistent(world.server)
        state = await world.state(sandbox.id)
        if error is None:
            assert state is operation.done
        else:
            assert state in (operation.undone, operation.done), error
        await nothing_is_lost(world, operation, sandbox)
        await clear(world)
        await check_consistent(world.server)
    except BaseException as failure:
        raise AssertionError(f"with {shown(fault)}") from failure


async def round_cancelled(world: World, operation: Operation, call: str, nth: int) -> None:
    """The operation itself is cancelled, as by a server that stops in the middle of it, and another server follows."""
    fault = Fault(call, nth, error=asyncio.CancelledError())
    try:
        sandbox = await prepared(world, operation)
        world.host.faults.add(fault)
        with suppress(ForkyardError, asyncio.CancelledError):
            await world.server.do(operation.run(world, sandbox))
        await world.restart()
        await after_restart(world, operation, sandbox.id)
        await clear(world)
    except BaseException as failure:
        raise AssertionError(f"with {shown(fault)}") from failure


async def crash_at(world: World, operation: Operation, point: str, nth: int = 1) -> str:
    """Run the operation with a server that dies at this point. Answers the sandbox's id."""
    sandbox = await prepared(world, operation)
    world.server.life.die_at(point, world.server.life.passed(point) + nth)
    with suppress(ForkyardError, Crashed, asyncio.CancelledError):
        await world.server.do(operation.run(world, sandbox))
    if not world.server.life.dead:
        await world.server.quiet()
    assert world.server.life.dead, f"{operation.name} does not come to {point}"
    return sandbox.id


async def after_restart(world: World, operation: Operation, sandbox_id: str) -> None:
    await world.server.quiet()
    await check_consistent(world.server)
    assert await world.state(sandbox_id) in (operation.undone, operation.done)
    await nothing_is_lost(world, operation, await world.row(sandbox_id))


async def crash_twice(world: World, operation: Operation, point: str, nth: int) -> bool:
    """The server dies at this point, the next one at its n-th call. False if that one had recovered before."""
    sandbox_id = await crash_at(world, operation, point)
    await world.crash()
    died = await world.start_and_die(nth)
    if died:
        await world.restart()
    await after_restart(world, operation, sandbox_id)
    await clear(world)
    return died


def shown(fault: Fault) -> str:
    return f"{fault.call} #{fault.nth} x{fault.times} {'after' if fault.after else 'before'}: {fault.error!r}"
