"""A capture that the host's disk has no room for is refused before anything is stopped."""

from collections.abc import Callable

import pytest

from forkyard.sandboxes import admission
from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import DiskFull, NotRunning
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import fail
from forkyard.testing.world import World

MIB = 1 << 20
TOUCHING = ("driver.c*", "driver.r*", "guest.*", "routes.*", "files.*", "store.write")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the host's disk have that many bytes."""

    def set_free(bytes_: int) -> None:
        monkeypatch.setattr(admission, "free_bytes", lambda _path: bytes_)

    return set_free


async def full_of(world: World, *, memory: int, disk: int) -> str:
    sandbox = await world.create()
    await world.server.quiet()
    inside = world.machine(sandbox.id).inside
    inside.memory["x"], inside.files["/x"] = "m" * memory, "d" * disk
    return sandbox.id


async def refused(world: World, sandbox_id: str) -> None:
    service = world.server.sandboxes
    world.host.faults.calls.clear()
    for call in (
        service.pause(TEAM, sandbox_id),
        service.pause(TEAM, sandbox_id, keep_memory=False),
        service.snapshot(TEAM, sandbox_id),
        service.fork(TEAM, sandbox_id),
    ):
        with pytest.raises(DiskFull, match="are needed"):
            await call
    assert world.host.faults.names(*TOUCHING) == []
    assert await world.state(sandbox_id) is State.RUNNING


async def test_what_it_had_at_the_last_sample_must_fit(world: World, free: Callable[[int], None]) -> None:
    sandbox_id = await full_of(world, memory=3 * MIB, disk=2 * MIB)
    await world.server.samples.sample()
    free(4 * MIB)
    await refused(world, sandbox_id)
    free(6 * MIB)
    # Each child has a disk of its own.
    with pytest.raises(DiskFull):
        await world.server.sandboxes.fork(TEAM, sandbox_id, count=2)
    await world.server.sandboxes.snapshot(TEAM, sandbox_id)
    await world.server.sandboxes.pause(TEAM, sandbox_id)
    with pytest.raises(NotRunning):
        await world.server.sandboxes.fork(TEAM, sandbox_id, count=2)


async def test_one_that_was_not_sampled_yet_is_measured(world: World, free: Callable[[int], None]) -> None:
    sandbox_id = await full_of(world, memory=3 * MIB, disk=2 * MIB)
    free(4 * MIB)
    await refused(world, sandbox_id)
    other = await full_of(world, memory=1 * MIB, disk=1 * MIB)
    await world.server.sandboxes.pause(TEAM, other)


async def test_one_that_cannot_be_measured_may_have_all_that_it_is_allowed(
    world: World, free: Callable[[int], None]
) -> None:
    sandbox_id = await full_of(world, memory=10, disk=10)
    free(1000 * MIB)
    world.host.faults.add(fail("driver.stats", DriverError("away")))
    await refused(world, sandbox_id)
    await world.server.samples.sample()
    await world.server.sandboxes.pause(TEAM, sandbox_id)


async def test_with_room_for_all_of_it_nothing_is_measured(world: World, free: Callable[[int], None]) -> None:
    sandbox_id = await full_of(world, memory=10, disk=10)
    free((512 + 1024) * MIB)
    await world.server.sandboxes.pause(TEAM, sandbox_id)
    assert "driver.stats" not in world.host.faults.names()


async def test_a_new_machine_is_not_what_the_last_one_was(world: World, free: Callable[[int], None]) -> None:
    sandbox_id = await full_of(world, memory=3 * MIB, disk=2 * MIB)
    await world.server.samples.sample()
    await world.server.sandboxes.pause(TEAM, sandbox_id)
    await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)
    world.machine(sandbox_id).inside.memory.clear()
    free(4 * MIB)
    await world.server.sandboxes.pause(TEAM, sandbox_id)
