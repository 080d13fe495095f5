"""The life of network slots: made, adopted, swept, and what is left when somebody is killed in between."""
# ruff: noqa: ASYNC220, ASYNC221, ASYNC240 - blocking is fine: nothing else runs in these loops

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from forkyard.base.crashpoints import KNOWN
from forkyard.base.ids import new_instance_id
from forkyard.host import namespaces, slots
from forkyard.host.addresses import AddressPool
from forkyard.host.egress import EgressPolicy
from forkyard.host.errors import FirewallError, NoFreeSlot, SlotNotFound
from forkyard.host.firewall import FirewallConfig
from forkyard.host.network import HostNetwork
from forkyard.host.reservations import Reservations
from forkyard.host.slots import Slots
from tests.integration.host import lab
from tests.integration.host.lab import connect, guest_socket, host_socket, listening

pytestmark = [pytest.mark.root]

EVERYTHING = EgressPolicy()


async def test_a_slot_has_what_it_says(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    shown = subprocess.run(
        ["ip", "-o", "addr", "show", slot.interface], capture_output=True, text=True, check=True
    ).stdout
    assert f"{slot.gateway}/30" in shown
    assert "inet6" not in shown
    inside = ["ip", "netns", "exec", slot.namespace]
    guest = subprocess.run([*inside, "ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    assert slot.address_with_prefix in guest
    assert "inet6 fe80" not in guest
    routes = subprocess.run([*inside, "ip", "route"], capture_output=True, text=True, check=True).stdout
    assert f"default via {slot.gateway} dev eth0" in routes
    neighbours = subprocess.run(
        ["ip", "neigh", "show", "dev", slot.interface], capture_output=True, text=True, check=True
    ).stdout
    assert neighbours.split() == [str(slot.address), "lladdr", slot.guest_mac.hex(":"), "PERMANENT"]
    assert Path(f"/proc/sys/net/ipv4/conf/{slot.interface}/rp_filter").read_text() == "1\n"
    assert len(slot.interface) <= 15
    assert await network.list_own() == {slot.number}


async def test_no_thread_is_left_in_another_namespace(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    await network.recycle(slot, EVERYTHING)
    own = os.readlink("/proc/self/ns/net")
    # A thread that has ended may be listed for a moment longer.
    lab.eventually(lambda: _namespaces_of_threads() == {own}, "all threads are in the host's namespace")


def _namespaces_of_threads() -> set[str]:
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/task/{task}/ns/net"))
    return found


async def test_many_are_made_and_removed_at_once_on_both_sides_of_one_range(
    instance: str, open_network: Any
) -> None:
    networks = [await open_network(name) for name in (instance, new_instance_id())]
    made = await asyncio.gather(*(network.create(EVERYTHING) for _ in range(12) for network in networks))
    assert len({slot.subnet for slot in made}) == 24
    assert len({slot.guest_mac for slot in made}) == 24
    await asyncio.gather(*(networks[0].remove(slot) for slot in made if slot.instance == instance))
    assert lab.leftovers(instance) == [f"table inet forkyard_{instance}"]
    assert len(await networks[1].list_own()) == 12
    with guest_socket(made[1]) as server, host_socket() as client:
        _, port = listening(server)
        assert connect(client, made[1].address, port) == "open"


async def test_removing_twice_and_what_is_half_gone(network: HostNetwork) -> None:
    first, second = await network.create(EVERYTHING), await network.create(EVERYTHING)
    subprocess.run(["ip", "link", "delete", first.interface], check=True)
    namespaces.remove(second.namespace)
    await asyncio.gather(network.remove(first), network.remove(second), network.remove(first))
    await network.remove(first)
    assert await network.list_own() == set()


async def test_removing_does_not_wait_for_processes_in_the_namespace(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    stays = subprocess.Popen(["ip", "netns", "exec", slot.namespace, "sleep", "1000"])
    try:
        lab.eventually(
            lambda: os.readlink(f"/proc/{stays.pid}/ns/net") != os.readlink("/proc/self/ns/net"),
            "process inside",
        )
        await network.remove(slot)
        assert slot.interface not in [name for _, name in socket.if_nameindex()]
        assert not Path(slot.netns_path).exists()
    finally:
        stays.kill()
        stays.wait()


async def test_numbers_go_round_so_that_addresses_rest(network: HostNetwork) -> None:
    first = await network.create(EVERYTHING)
    await network.remove(first)
    second = await network.create(EVERYTHING)
    assert second.number != first.number


async def test_a_small_range_runs_out_and_comes_back(instance: str, open_network: Any) -> None:
    network = await open_network(instance, FirewallConfig(slot_range=IPv4Network("10.197.44.0/29")))
    made = [await network.create(EVERYTHING) for _ in range(2)]
    with pytest.raises(NoFreeSlot, match="another slot range"):
        await network.create(EVERYTHING)
    await network.remove(made[0])
    assert (await network.create(EVERYTHING)).number == made[0].number


async def test_subnets_that_the_host_uses_are_left_out(
    instance: str, open_network: Any, internet: lab.Internet
) -> None:
    """An address, a route to elsewhere, another instance's slot: all of them."""
    subprocess.run(["ip", "addr", "add", "10.197.45.2/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "route", "add", "10.197.45.4/30", "via", str(internet.address)], check=True)
    try:
        config = FirewallConfig(slot_range=IPv4Network("10.197.45.0/28"))
        other = await open_network(
            new_instance_id(), FirewallConfig(slot_range=IPv4Network("10.197.45.8/29"))
        )
        network = await open_network(instance, config)
        assert str((await other.create(EVERYTHING)).subnet) == "10.197.45.8/30"
        assert str((await network.create(EVERYTHING)).subnet) == "10.197.45.12/30"
        with pytest.raises(NoFreeSlot):
            await network.create(EVERYTHING)
    finally:
        subprocess.run(["ip", "addr", "del", "10.197.45.2/32", "dev", "lo"], check=True)
        subprocess.run(["ip", "route", "del", "10.197.45.4/30"], check=True)


async def test_the_next_process_adopts_what_runs_without_a_gap_and_sweeps_the_rest(
    instance: str, open_network: Any, tmp_path: Path, internet: lab.Internet
) -> None:
    before = HostNetwork(instance, tmp_path)
    await before.open({})
    kept, dropped, cut = [await before.create(EVERYTHING) for _ in range(3)]
    server, port = internet.socket()
    with server, guest_socket(kept) as client:
        assert connect(client, internet.address, port) == "open"
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(lab.PATIENCE)
            await before.close()
            after = HostNetwork(instance, tmp_path)
            bindings = {
                kept.number: (EVERYTHING, False),
                cut.number: (EVERYTHING, True),
                4711: (EVERYTHING, False),
            }
            found = await after.open(bindings)
            try:
                assert found == {kept.number: kept, cut.number: cut}
                assert await after.list_own() == {kept.number, cut.number}
                client.sendall(b"still")
                assert accepted.recv(5) == b"still"
                fresh = await after.create(EVERYTHING)
                assert fresh.number not in found
                await after.set_policy(kept, EgressPolicy(allow_internet=False))
                client.sendall(b"x")
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
            finally:
                await after.teardown()
                await after.close()
    assert dropped.namespace not in namespaces.names("fy-")


async def test_a_changed_range_does_not_lose_the_slots_of_the_old_one(instance: str, tmp_path: Path) -> None:
    before = HostNetwork(instance, tmp_path, FirewallConfig(slot_range=IPv4Network("10.197.46.0/24")))
    await before.open({})
    kept, other = await before.create(EVERYTHING), await before.create(EVERYTHING)
    await before.close()
    after = HostNetwork(instance, tmp_path, FirewallConfig(slot_range=IPv4Network("10.197.47.0/24")))
    try:
        assert await after.open({kept.number: (EVERYTHING, False)}) == {kept.number: kept}
        fresh = [await after.create(EVERYTHING) for _ in range(3)]
        assert kept.number not in {slot.number for slot in fresh}
        assert all(slot.subnet.subnet_of(IPv4Network("10.197.47.0/24")) for slot in fresh)
        assert other.namespace in {slot.namespace for slot in fresh}
    finally:
        await after.teardown()
        await after.close()


async def test_a_slot_that_lost_a_part_is_not_adopted(instance: str, tmp_path: Path) -> None:
    before = HostNetwork(instance, tmp_path)
    await before.open({})
    cableless, placeless, whole = [await before.create(EVERYTHING) for _ in range(3)]
    await before.close()
    subprocess.run(["ip", "link", "delete", cableless.interface], check=True)
    namespaces.remove(placeless.namespace)
    after = HostNetwork(instance, tmp_path)
    try:
        bindings = {slot.number: (EVERYTHING, False) for slot in (cableless, placeless, whole)}
        assert await after.open(bindings) == {whole.number: whole}
    finally:
        await after.teardown()
        await after.close()


async def test_recycling_a_slot_that_lost_a_part_is_an_error(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    subprocess.run(["ip", "link", "delete", slot.interface], check=True)
    with pytest.raises(SlotNotFound):
        await network.recycle(slot, EVERYTHING)
    await network.remove(slot)


async def test_recycling_gives_the_address_back_that_a_runtime_took(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    flush = ["ip", "-n", slot.namespace, "addr", "flush", "dev", "eth0"]
    subprocess.run(flush, check=True)
    learned = [
        "ip",
        "neigh",
        "add",
        str(slot.address + 1),
        "lladdr",
        "02:00:00:00:00:09",
        "nud",
        "stale",
        "dev",
        slot.interface,
    ]
    subprocess.run(learned, check=True)
    await network.recycle(slot, EVERYTHING)
    with guest_socket(slot) as server, host_socket() as client:
        _, port = listening(server)
        assert connect(client, slot.address, port) == "open"
    shown = subprocess.run(
        ["ip", "neigh", "show", "dev", slot.interface], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[0] == str(slot.address)
    assert len(shown.splitlines()) == 1


async def test_a_create_that_nobody_waits_for_leaves_nothing(network: HostNetwork, instance: str) -> None:
    tasks = [asyncio.create_task(network.create(EVERYTHING)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await network._operations.drain(lab.PATIENCE)  # pyright: ignore[reportPrivateUsage]
    assert lab.leftovers(instance) == [f"table inet forkyard_{instance}"]


async def test_a_create_that_fails_at_any_step_leaves_nothing(
    network: HostNetwork, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_arguments: object, **_more: object) -> None:
        raise FirewallError("refused")

    def fail(*_arguments: object) -> None:
        raise OSError("failed")

    for owner, name, failing in (
        (network._firewall, "attach", refuse),  # pyright: ignore[reportPrivateUsage]
        (network._slots, "_set_up_host_end", fail),  # pyright: ignore[reportPrivateUsage]
        (network._slots, "_connect", fail),  # pyright: ignore[reportPrivateUsage]
        (namespaces, "_mount", fail),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises((FirewallError, OSError)):
                await network.create(EVERYTHING)
        assert lab.leftovers(instance) == [f"table inet forkyard_{instance}"], name
    await network.create(EVERYTHING)


SLOT_POINTS = sorted(name for name in KNOWN if name.startswith("slots."))


@pytest.mark.parametrize("point", SLOT_POINTS)
async def test_a_kill_at_any_point_is_swept_by_the_next_process(
    instance: str, open_network: Any, tmp_path: Path, point: str
) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from forkyard.host.network import HostNetwork; from forkyard.host.egress import EgressPolicy\n"
        "async def main():\n"
        "    network = HostNetwork(sys.argv[1], Path(sys.argv[2])); await network.open({})\n"
        "    await network.remove(await network.create(EgressPolicy()))\n"
        "asyncio.run(main())"
    )
    env = {**os.environ, "PYTHONPATH": "src", "FORKYARD_CRASH_AT": point}
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, instance, str(tmp_path), env=env
    )
    assert await killed.wait() == -signal.SIGKILL
    assert len(lab.leftovers(instance)) > 1  # the table, and at least the reservation
    await open_network(instance)
    assert lab.leftovers(instance) == [f"table inet forkyard_{instance}"]


def test_a_kill_before_the_reservation_is_visible_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "slots"
    directory.mkdir()
    (directory / ".new-abc123-0011").write_text("{")
    (directory / ".new-other1-0011").write_text("{")
    (directory / "10.0.0.0-30").write_text("not ours")
    (directory / "10.0.0.4-30").write_text(
        '{"instance": "other1", "number": 1, "data_dir": "/", "pid": 1, "created_at": 1}'
    )
    mine = Reservations("abc123", tmp_path, directory)
    mine.prepare()
    slot = AddressPool("abc123", IPv4Network("10.0.0.0/29")).slot(1)
    assert sorted(os.listdir(directory)) == [".new-other1-0011", "10.0.0.0-30", "10.0.0.4-30"]
    assert not mine.take(slot)
    mine.release(slot.subnet)
    assert (directory / "10.0.0.4-30").exists()
    assert mine.own() == []
    assert mine.taken() == {IPv4Network("10.0.0.0/30"), IPv4Network("10.0.0.4/30")}


def test_strays_without_a_reservation_are_swept_by_name(instance: str, tmp_path: Path) -> None:
    made = Slots(AddressPool(instance), Reservations(instance, tmp_path))
    made.open()
    try:
        slot = made.create()
        Reservations(instance, tmp_path).release(slot.subnet)
        assert made.sweep(set()) == [slot.number]
        assert lab.leftovers(instance) == []
    finally:
        made.close()


def test_mtu_is_that_of_the_way_out_or_what_is_asked_for(instance: str, tmp_path: Path) -> None:
    for asked in (None, 1280):
        made = Slots(AddressPool(instance), Reservations(instance, tmp_path), asked)
        made.open()
        slot = made.create()
        try:
            found = int(Path(f"/sys/class/net/{slot.interface}/mtu").read_text())
            assert found == (asked or made._mtu)  # pyright: ignore[reportPrivateUsage]
            assert slots.MINIMUM_MTU <= found <= slots.DEFAULT_MTU
        finally:
            made.remove([slot])
            made.close()
