"""Samples of resource use, kept for an hour."""

import pytest

from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.samples import INTERVAL_S, KEEP
from forkyard.testing.core import TEAM
from forkyard.testing.world import World


async def test_one_pass_samples_all_that_run(world: World) -> None:
    running, paused = await world.create(), await world.create()
    world.machine(running.id).inside.memory["x"] = "12345"
    await world.server.sandboxes.pause(TEAM, paused.id)
    world.host.faults.calls.clear()
    await world.server.samples.sample()
    assert world.host.faults.names("driver.*") == ["driver.stats"]
    [sample] = await world.server.sandboxes.samples(TEAM, running.id)
    assert (sample.cpu_count, sample.memory_used, sample.memory_total) == (2, 5, 512 << 20)
    assert sample.disk_total == 1024 << 20
    assert sample.cpu_used_pct == 0
    assert await world.server.sandboxes.samples(TEAM, paused.id) == ()


async def test_cpu_use_is_what_was_used_between_two_samples(world: World) -> None:
    sandbox = await world.create()
    await world.server.samples.sample()
    inside = world.machine(sandbox.id).inside
    inside.next_pid += 2500  # milliseconds of CPU time, of the fake
    await world.clock.advance(5)
    await world.server.samples.sample()
    assert (await world.server.sandboxes.samples(TEAM, sandbox.id))[-1].cpu_used_pct == pytest.approx(50)


async def test_a_new_machine_starts_counting_afresh(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    world.machine(sandbox.id).inside.next_pid += 100_000
    await world.server.samples.sample()
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    await world.clock.advance(5)
    await world.server.samples.sample()
    assert (await service.samples(TEAM, sandbox.id))[-1].cpu_used_pct == 0


async def test_they_are_bounded_and_those_of_ended_sandboxes_go(world: World) -> None:
    ended, running = await world.create(timeout_s=10**6), await world.create(timeout_s=10**6)
    await world.server.samples.sample()
    await world.server.sandboxes.kill(TEAM, ended.id)
    for _ in range(KEEP + 5):
        await world.clock.advance(INTERVAL_S)
        await world.server.samples.sample()
    assert len(world.server.samples.of(running.id)) == KEEP
    assert world.server.samples.of(ended.id) == ()
    with pytest.raises(SandboxNotFound):
        await world.server.sandboxes.samples(TEAM, ended.id)


async def test_latest_samples_of_the_teams_own(world: World) -> None:
    mine, theirs = await world.create(), await world.create("team-2")
    await world.server.samples.sample()
    latest = await world.server.sandboxes.latest_samples(TEAM, [mine.id, theirs.id, "unknown"])
    assert set(latest) == {mine.id}
