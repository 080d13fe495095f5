"""Limits bind create, resume, fork and wake alike; two at once cannot both take the last place."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.host import disk
from forkyard.sandboxes import admission
from forkyard.sandboxes.admission import Admission, Limits, TokenBucket
from forkyard.sandboxes.errors import DiskFull, SandboxLimit
from forkyard.sandboxes.state import State
from forkyard.testing.clock import ManualClock
from forkyard.testing.core import TEAM
from forkyard.testing.world import World


async def limited(world: World, **limits: Limits) -> None:
    world.options.update(limits)
    await world.stop()
    await world.start()


@pytest_asyncio.fixture
async def two(world: World) -> AsyncGenerator[World]:
    """Two sandboxes a team."""
    await limited(world, team=Limits(sandboxes=2))
    yield world


async def test_the_limit_binds_every_way_to_run(two: World) -> None:
    service = two.server.sandboxes
    first, second = await two.create(auto_resume=True), await two.create()
    with pytest.raises(SandboxLimit) as refused:
        await two.create()
    assert refused.value.retry_after
    await service.pause(TEAM, first.id)
    third = await two.create()
    for call in (
        service.resume(TEAM, first.id, timeout_s=60),
        service.connect(TEAM, first.id, timeout_s=60),
        service.wake(first.id),
        service.fork(TEAM, second.id),
        two.create(),
    ):
        with pytest.raises(SandboxLimit):
            await call
    assert await two.state(first.id) is State.PAUSED
    await two.create("team-2")
    await service.kill(TEAM, third.id)
    assert (await service.connect(TEAM, first.id, timeout_s=60)).resumed


async def test_two_at_once_cannot_both_take_the_last_place(two: World) -> None:
    results = await asyncio.gather(*(two.create() for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(result, SandboxLimit) for result in results) == 4
    assert len(await two.core.store.of_node(two.core.node_id)) == 2


async def test_who_joins_a_resume_needs_no_place_of_his_own(two: World) -> None:
    service = two.server.sandboxes
    sandbox = await two.create()
    await service.pause(TEAM, sandbox.id)
    await two.create()
    results = await asyncio.gather(*(service.connect(TEAM, sandbox.id, timeout_s=60) for _ in range(4)))
    assert {result.sandbox.generation for result in results} == {2}


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Limits(vcpus=5), 2),
        (Limits(memory_mb=1023), 1),
        (Limits(memory_mb=1024), 2),
        (Limits(disk_mb=3 * 1024), 3),
        (Limits(sandboxes=3, vcpus=4), 2),
    ],
)
@pytest.mark.parametrize("of", ["node", "team"])
async def test_what_is_limited(world: World, limits: Limits, fits: int, of: str) -> None:
    await limited(world, **{of: limits})
    for _ in range(fits):
        await world.create()
    with pytest.raises(SandboxLimit, match="this server" if of == "node" else "your team"):
        await world.create()


async def test_a_refused_create_leaves_no_record(two: World) -> None:
    for _ in range(2):
        await two.create()
    with pytest.raises(SandboxLimit):
        await two.create(idempotency_key="k")
    assert len(await two.all_rows()) == 2
    assert await two.core.store.idempotent(TEAM, "k") is None


async def test_the_rate_of_creates(world: World) -> None:
    await limited(world, team=Limits(creates_per_second=2))
    sandbox = await world.create()
    await world.create()
    with pytest.raises(SandboxLimit) as refused:
        await world.create()
    assert refused.value.retry_after == pytest.approx(0.5)
    with pytest.raises(SandboxLimit):
        await world.server.sandboxes.fork(TEAM, sandbox.id)
    await world.create("team-2")
    await world.server.sandboxes.pause(TEAM, sandbox.id)
    with pytest.raises(SandboxLimit):
        await world.server.sandboxes.resume(TEAM, sandbox.id, timeout_s=60)
    await world.clock.advance(0.5)
    await world.server.sandboxes.resume(TEAM, sandbox.id, timeout_s=60)


async def test_who_is_refused_uses_nothing_up(tmp_path: Path) -> None:
    clock = ManualClock()

    def allowed(team_id: str) -> bool:
        try:
            rates.check_rate(team_id, 1)
        except SandboxLimit:
            return False
        return True

    rates = Admission(
        node_id="node",
        node=Limits(creates_per_second=4),
        team=Limits(creates_per_second=2),
        data_dir=tmp_path,
        min_free_disk=0,
        clock=clock,
    )
    # One team that tries without end leaves the others what it may not have itself,
    assert [allowed("greedy") for _ in range(10)] == [True] * 2 + [False] * 8
    assert [allowed("modest") for _ in range(2)] == [True, True]
    # and who is refused for the sake of the server keeps what his team may have.
    assert [allowed("late") for _ in range(5)] == [False] * 5
    await clock.advance(0.5)
    assert [allowed("late") for _ in range(2)] == [True, True]


async def test_a_team_may_have_limits_of_its_own_which_change(world: World) -> None:
    bounds = {TEAM: Limits(sandboxes=1), "team-2": Limits()}
    world.options.update(team=Limits(sandboxes=2), team_limits=lambda team_id: bounds[team_id])
    await world.stop()
    await world.start()
    await world.create()
    with pytest.raises(SandboxLimit, match="1 allowed"):
        await world.create()
    for _ in range(3):
        await world.create("team-2")
    bounds[TEAM] = Limits(sandboxes=5, creates_per_second=1)
    await world.create()
    with pytest.raises(SandboxLimit, match="your team creates more than 1 "):
        await world.create()
    bounds[TEAM] = Limits(creates_per_second=3)
    for _ in range(3):
        await world.create()


def test_a_token_bucket() -> None:
    clock = ManualClock()
    bucket = TokenBucket(4.0, clock)
    assert [bucket.take(1) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    clock.step_wall_clock(100)
    assert bucket.take(1) == 0.25
    # More than it holds is granted when it is full, and paid back afterwards.
    full = TokenBucket(4.0, ManualClock())
    assert full.take(10) == 0.0
    assert full.take(1) == pytest.approx(7 / 4)
    slow = TokenBucket(0.5, ManualClock())
    assert slow.take(1) == 0.0
    assert slow.take(1) == pytest.approx(2.0)


async def test_a_full_host_disk_refuses_before_anything_is_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    paused = await world.create()
    await service.pause(TEAM, paused.id)
    await world.server.quiet()
    await limited(world, min_free_disk=1 << 30)  # type: ignore[arg-type]
    service = world.server.sandboxes
    monkeypatch.setattr(admission, "free_bytes", lambda _path: 1 << 29)
    world.host.faults.calls.clear()
    for call in (
        world.create(),
        service.pause(TEAM, sandbox.id),
        service.snapshot(TEAM, sandbox.id),
        service.fork(TEAM, sandbox.id),
        service.resume(TEAM, paused.id, timeout_s=60),
    ):
        with pytest.raises(DiskFull, match="512 MiB"):
            await call
    assert world.host.faults.names("driver.*", "guest.*", "routes.*", "store.write") == []
    # What needs no disk goes on.
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    await service.set_timeout(TEAM, sandbox.id, 60)
    await service.kill(TEAM, paused.id)
    monkeypatch.setattr(admission, "free_bytes", disk.free_bytes)
