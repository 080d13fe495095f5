"""Egress rules: the record counts, and the machine follows it through everything."""

import asyncio

import pytest

from forkyard.base.errors import InvalidInput, NotSupported
from forkyard.sandboxes.driver import DriverError, EgressPolicy
from forkyard.sandboxes.egress import egress_policy
from forkyard.testing.core import TEAM
from forkyard.testing.faults import fail, hold
from forkyard.testing.world import World


async def deny(world: World, sandbox_id: str, *addresses: str) -> None:
    await world.server.sandboxes.set_network(
        TEAM, sandbox_id, allow_out=None, deny_out=list(addresses) or None, allow_internet=None
    )


def denied(world: World, sandbox_id: str) -> list[str]:
    return [str(network) for network in world.machine(sandbox_id).egress.deny]


async def test_rules_are_replaced_whole(world: World) -> None:
    sandbox = await world.create(deny_out=["1.1.1.0/24"], allow_out=["1.1.1.1"], allow_internet=False)
    policy = world.machine(sandbox.id).egress
    assert policy == egress_policy(allow_out=["1.1.1.1"], deny_out=["1.1.1.0/24"], allow_internet=False)
    await deny(world, sandbox.id, "8.8.8.8")
    assert world.machine(sandbox.id).egress == egress_policy(
        allow_out=None, deny_out=["8.8.8.8"], allow_internet=None
    )
    await deny(world, sandbox.id)
    assert world.machine(sandbox.id).egress == EgressPolicy()


async def test_rules_survive_pause_resume_fork_and_restart(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await deny(world, sandbox.id, "8.8.8.8")
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    assert denied(world, sandbox.id) == ["8.8.8.8/32"]
    [result] = await service.fork(TEAM, sandbox.id)
    assert result.sandbox is not None
    assert denied(world, result.sandbox.id) == ["8.8.8.8/32"]
    await world.restart()
    assert denied(world, sandbox.id) == ["8.8.8.8/32"]


async def test_of_two_changes_at_once_the_recorded_one_holds(world: World) -> None:
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.set_egress"))
    first = asyncio.create_task(deny(world, sandbox.id, "1.1.1.1"))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await deny(world, sandbox.id, "2.2.2.2")
    held.release()
    await first
    assert denied(world, sandbox.id) == ["2.2.2.2/32"]
    assert (await world.row(sandbox.id)).deny_out == ["2.2.2.2"]


async def test_a_pause_in_between_takes_the_rules_along(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.set_egress"))
    changing = asyncio.create_task(deny(world, sandbox.id, "8.8.8.8"))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await service.pause(TEAM, sandbox.id)
    await world.server.quiet(but=1)
    held.release()
    await changing
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    assert denied(world, sandbox.id) == ["8.8.8.8/32"]


async def test_when_the_driver_fails_the_rules_are_applied_later(world: World) -> None:
    sandbox = await world.create()
    world.host.faults.add(fail("driver.set_egress", DriverError("nft is stuck"), times=2))
    with pytest.raises(DriverError):
        await deny(world, sandbox.id, "8.8.8.8")
    assert denied(world, sandbox.id) == []
    from forkyard.sandboxes.upkeep import upkeep

    for _ in range(2):
        await world.server.do(upkeep(world.core))
    assert denied(world, sandbox.id) == ["8.8.8.8/32"]


@pytest.mark.parametrize(
    ("values", "error", "field"),
    [
        ({"allow_out": ["example.com"]}, NotSupported, "network.allowOut[0]"),
        ({"allow_out": ["1.1.1.1", "*.example.com"]}, NotSupported, "network.allowOut[1]"),
        ({"deny_out": ["fe80::1/64"]}, NotSupported, "network.denyOut[0]"),
        ({"deny_out": ["1.2.3.4/33"]}, InvalidInput, "network.denyOut[0]"),
        ({"deny_out": ["1.2.3"]}, InvalidInput, "network.denyOut[0]"),
        ({"deny_out": ["1.1.1.1"] * 1001}, InvalidInput, "network.denyOut"),
    ],
)
async def test_what_is_refused_and_nothing_changed(
    world: World, values: dict[str, list[str]], error: type[InvalidInput], field: str
) -> None:
    sandbox = await world.create()
    rules = {"allow_out": None, "deny_out": None, **values}
    with pytest.raises(error) as refused:
        await world.server.sandboxes.set_network(TEAM, sandbox.id, allow_internet=None, **rules)
    assert refused.value.field == field
    assert world.machine(sandbox.id).egress == EgressPolicy()


async def test_a_single_address_and_a_range_with_host_bits(world: World) -> None:
    sandbox = await world.create(deny_out=["10.1.2.3/8", " 1.1.1.1 "])
    assert denied(world, sandbox.id) == ["10.0.0.0/8", "1.1.1.1/32"]
