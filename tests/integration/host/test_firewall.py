"""The packet filter's table: single changes lead to the same table as writing all of it."""
# ruff: noqa: ASYNC221 - blocking is fine: nothing else runs in these loops

import asyncio
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network

import pytest

from forkyard.base.ids import new_instance_id
from forkyard.host.addresses import AddressPool
from forkyard.host.egress import EgressPolicy
from forkyard.host.errors import RequirementMissing, SlotNotFound
from forkyard.host.firewall import Binding, Firewall, FirewallConfig
from tests.integration.host import lab

pytestmark = [pytest.mark.root]


def nets(*texts: str) -> tuple[IPv4Network, ...]:
    return tuple(IPv4Network(text) for text in texts)


POLICIES = [
    EgressPolicy(),
    EgressPolicy(allow_internet=False),
    EgressPolicy(nets("8.8.8.8/32"), (), False),
    EgressPolicy(nets("8.8.8.8/32", "8.8.8.9/32", "9.0.0.0/9"), nets("8.0.0.0/8")),
    EgressPolicy((), nets("0.0.0.0/1")),
    EgressPolicy((), nets("128.0.0.0/1")),
    EgressPolicy((), nets("255.255.255.255/32", "0.0.0.0/32")),
    EgressPolicy(nets("1.1.1.1/32"), nets("0.0.0.0/0")),
    EgressPolicy((), tuple(IPv4Network((IPv4Address("11.0.0.0") + n * 512, 24)) for n in range(3000))),
]


@pytest.fixture
def executor() -> "AsyncIterator[ThreadPoolExecutor]":
    with ThreadPoolExecutor(2) as made:
        yield made  # type: ignore[misc]


async def in_force(instance: str, executor: ThreadPoolExecutor, bindings: list[Binding]) -> object:
    """The table as it is when all of it is written at once."""
    firewall = Firewall(instance, FirewallConfig(), executor)
    await firewall.open(bindings)
    state = lab.table_state(instance)
    await firewall.close()
    return state


async def test_every_single_change_leads_to_the_table_that_would_be_written(
    instance: str, executor: ThreadPoolExecutor
) -> None:
    pool = AddressPool(instance)
    slots = [pool.slot(number) for number in range(len(POLICIES))]
    firewall = Firewall(instance, FirewallConfig(), executor)
    await firewall.open([])
    empty = lab.table_state(instance)
    try:
        for slot, policy in zip(slots, POLICIES, strict=True):
            await firewall.attach(slot, policy, cut=slot.number % 2 == 0)
        for shift in (0, 1, 3, 2):
            for slot in slots:
                await firewall.set_policy(slot, POLICIES[(slot.number + shift) % len(POLICIES)])
                await (firewall.cut(slot) if shift % 2 else firewall.uncut(slot))
            by_changes = lab.table_state(instance)
            assert by_changes == await in_force(instance, executor, firewall.bindings())
        await firewall.detach(slots)
        await firewall.detach(slots)
        assert lab.table_state(instance) == empty
    finally:
        await firewall.teardown()
        await firewall.close()
    assert lab.table_state(instance) is None


async def test_a_refused_change_writes_the_whole_table_again(
    instance: str, executor: ThreadPoolExecutor
) -> None:
    pool = AddressPool(instance)
    firewall = Firewall(instance, FirewallConfig(), executor)
    await firewall.open([Binding(pool.slot(1), POLICIES[3])])
    try:
        for change in (
            lambda: firewall.attach(pool.slot(2), POLICIES[2]),
            lambda: firewall.cut(pool.slot(1)),
            lambda: firewall.detach([pool.slot(2)]),
        ):
            subprocess.run(["nft", "delete", "table", "inet", f"forkyard_{instance}"], check=True)
            await change()
            assert lab.table_state(instance) == await in_force(instance, executor, firewall.bindings())
        assert firewall.bindings() == [Binding(pool.slot(1), POLICIES[3], cut=True)]
    finally:
        await firewall.teardown()
        await firewall.close()


async def test_a_slot_that_is_not_bound_is_an_error(instance: str, executor: ThreadPoolExecutor) -> None:
    firewall = Firewall(instance, FirewallConfig(), executor)
    await firewall.open([])
    slot = AddressPool(instance).slot(7)
    try:
        for change in (firewall.cut(slot), firewall.uncut(slot), firewall.set_policy(slot, EgressPolicy())):
            with pytest.raises(SlotNotFound):
                await change
    finally:
        await firewall.teardown()
        await firewall.close()


async def test_a_change_whose_caller_is_cut_off_is_done_and_known(
    instance: str, executor: ThreadPoolExecutor
) -> None:
    pool = AddressPool(instance)
    firewall = Firewall(instance, FirewallConfig(), executor)
    await firewall.open([Binding(pool.slot(number), EgressPolicy()) for number in range(20)])
    try:
        tasks = [asyncio.create_task(firewall.cut(pool.slot(number))) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await firewall.uncut(pool.slot(0))  # waits for its turn
        assert [b.cut for b in firewall.bindings()] == [False] + [True] * 19
        assert lab.table_state(instance) == await in_force(instance, executor, firewall.bindings())
    finally:
        await firewall.teardown()
        await firewall.close()


async def test_instances_change_their_tables_at_the_same_time(executor: ThreadPoolExecutor) -> None:
    """The kernel has one lock and one generation counter for all tables; nobody may lose a change by that."""
    firewalls = {
        name: Firewall(name, FirewallConfig(), executor) for name in (new_instance_id() for _ in range(3))
    }
    await asyncio.gather(*(firewall.open([]) for firewall in firewalls.values()))
    try:
        await asyncio.gather(
            *(
                firewall.attach(AddressPool(name).slot(number), POLICIES[number % 4])
                for number in range(40)
                for name, firewall in firewalls.items()
            )
        )
        for name, firewall in firewalls.items():
            assert len(lab.table_state(name)["set sources"]["elem"]) == 40
            assert lab.table_state(name) == await in_force(name, executor, firewall.bindings())
    finally:
        for firewall in firewalls.values():
            await firewall.teardown()
            await firewall.close()


async def test_a_host_without_nft_is_told_what_to_install(
    instance: str, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkyard.host.firewall._NFT_PATH", "/nowhere")
    firewall = Firewall(instance, FirewallConfig(), executor)
    with pytest.raises(RequirementMissing, match="apt-get install nftables"):
        await firewall.open([])
    await firewall.close()
