"""Every call of every operation fails, once or for long: nothing is lost or left, and it works on afterwards."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import suppress

import pytest

from forkyard.base.errors import ForkyardError
from forkyard.guest.errors import GuestRefused, GuestUnreachable
from forkyard.host.errors import NoSpace
from forkyard.sandboxes.driver import DriverError, HostFull
from forkyard.sandboxes.state import State
from forkyard.storage.errors import DatabaseFull, DatabaseUnavailable
from forkyard.testing.faults import Fault
from forkyard.testing.world import World, check_consistent
from tests.unit.sandboxes.operations import OPERATIONS, Operation, clear, nothing_is_lost, prepared

ERRORS: dict[str, tuple[BaseException, ...]] = {
    "driver": (DriverError("the driver failed"), HostFull(), RuntimeError("a bug")),
    "guest": (GuestUnreachable(), GuestRefused()),
    "store": (DatabaseUnavailable(), DatabaseFull()),
    "files": (OSError(errno.EIO, "the disk failed"), NoSpace()),
    "routes": (RuntimeError("a bug"),),
}


async def calls_of(world: World, operation: Operation) -> list[str]:
    """Every call that the operation makes, in order, what it leaves to the background included."""
    sandbox = await prepared(world, operation)
    await operation.run(world, sandbox)
    await world.server.quiet()
    calls = world.host.faults.names()
    await clear(world)
    return calls


def numbered(calls: list[str]) -> Iterator[tuple[str, int]]:
    seen: dict[str, int] = {}
    for call in calls:
        seen[call] = seen.get(call, 0) + 1
        yield call, seen[call]


async def run_with(world: World, operation: Operation, fault: Fault) -> None:
    """One round: the operation with this fault, then everything must be as documented."""
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


def shown(fault: Fault) -> str:
    return f"{fault.call} #{fault.nth} x{fault.times} {'after' if fault.after else 'before'}: {fault.error!r}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_any_call_fails_once(world: World, operation: Operation, after: bool) -> None:
    for call, nth in numbered(await calls_of(world, operation)):
        errors = ERRORS[call.partition(".")[0]]
        error = errors[nth % len(errors)]
        fault = Fault(call, nth, after=after, error=error)
        try:
            await run_with(world, operation, fault)
        except BaseException as failure:
            raise AssertionError(f"with {shown(fault)}") from failure


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("part", ERRORS)
async def test_a_part_fails_and_stays_away(world: World, operation: Operation, part: str) -> None:
    """From its n-th call on, for every n, until long after the operation has given up."""
    calls = [call for call in await calls_of(world, operation) if call.startswith(part)]
    for nth in range(1, len(calls) + 1):
        fault = Fault(f"{part}.*", nth, times=0, error=ERRORS[part][0])
        try:
            await run_with(world, operation, fault)
        except BaseException as failure:
            raise AssertionError(f"with {shown(fault)}") from failure


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
async def test_the_operation_itself_is_cancelled_at_any_call(world: World, operation: Operation) -> None:
    """Nobody but a server that stops does that; what is left then is taken up like after a crash."""
    for call, nth in numbered(await calls_of(world, operation)):
        fault = Fault(call, nth, error=asyncio.CancelledError())
        sandbox = await prepared(world, operation)
        world.host.faults.add(fault)
        with suppress(ForkyardError, asyncio.CancelledError):
            await world.server.do(operation.run(world, sandbox))
        await world.restart()
        await world.server.quiet()
        try:
            await check_consistent(world.server)
            assert await world.state(sandbox.id) in (operation.undone, operation.done)
            await nothing_is_lost(world, operation, sandbox)
        except BaseException as failure:
            raise AssertionError(f"with {shown(fault)}") from failure
        await clear(world)


@pytest.mark.parametrize("call", ["guest.quiesce", "driver.cut", "driver.checkpoint", "driver.uncut"])
async def test_a_machine_that_dies_during_a_pause(world: World, call: str) -> None:
    pause = next(o for o in OPERATIONS if o.name == "pause")
    sandbox = await prepared(world, pause)
    if call == "driver.uncut":
        world.host.faults.add(Fault("driver.checkpoint", error=DriverError()))
    world.host.faults.add(Fault(call, effect=lambda c: world.host.kill(c.subject)))
    with pytest.raises(ForkyardError, match="died"):
        await world.server.do(pause.run(world, sandbox))
    row = await world.row(sandbox.id)
    assert row.state is State.GONE
    assert "died during a pause" in (row.end_reason or "")


async def test_a_machine_that_dies_after_its_checkpoint_is_paused(world: World) -> None:
    pause = next(o for o in OPERATIONS if o.name == "pause")
    sandbox = await prepared(world, pause)
    name = world.machine(sandbox.id).name
    world.host.faults.add(Fault("files.seal", effect=lambda _: world.host.kill(name)))
    await pause.run(world, sandbox)
    await nothing_is_lost(world, pause, sandbox)
