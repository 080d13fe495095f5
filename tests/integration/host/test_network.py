"""What a guest can and cannot reach, with real packets."""
# ruff: noqa: ASYNC221, ASYNC230 - blocking is fine: nothing else runs in these loops

import asyncio
import socket
import struct
import subprocess
from ipaddress import IPv4Network
from typing import Any

import pytest

from forkyard.base.ids import new_instance_id
from forkyard.host import firewall
from forkyard.host.addresses import Slot
from forkyard.host.egress import EgressPolicy
from forkyard.host.firewall import FirewallConfig
from forkyard.host.network import HostNetwork
from tests.integration.host import lab
from tests.integration.host.lab import Internet, connect, guest_socket, host_socket, is_silent, listening

pytestmark = [pytest.mark.root]

EVERYTHING = EgressPolicy()
NOTHING = EgressPolicy(allow_internet=False)


def net(address: object) -> IPv4Network:
    return IPv4Network(str(address))


def fence_to_host(slot: Slot) -> None:
    """An exchange that the host opens: what the guest sent to the host before has arrived by its end, if ever."""
    server, port = listening(guest_socket(slot))
    with server, host_socket() as client:
        assert connect(client, slot.address, port) == "open"
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(lab.PATIENCE)
            accepted.sendall(b"fence")
            assert client.recv(5) == b"fence"
            client.sendall(b"back")
            assert accepted.recv(4) == b"back"


async def test_guest_reaches_the_internet_from_the_hosts_address(
    network: HostNetwork, internet: Internet
) -> None:
    slot = await network.create(EVERYTHING)
    server, port = internet.socket()
    with server, guest_socket(slot) as client:
        assert connect(client, internet.address, port) == "open"
        accepted, (seen, _) = server.accept()
        with accepted:
            assert seen == str(internet.host_address)
            accepted.sendall(b"hello")
            assert client.recv(5) == b"hello"


@pytest.mark.parametrize(
    ("policy", "address", "other"),
    [
        (lambda a, b: EgressPolicy(), "open", "open"),
        (lambda a, b: EgressPolicy(allow_internet=False), "ConnectionRefusedError", "ConnectionRefusedError"),
        (lambda a, b: EgressPolicy(allow=(net(a),), allow_internet=False), "open", "ConnectionRefusedError"),
        (lambda a, b: EgressPolicy(deny=(net(a),)), "ConnectionRefusedError", "open"),
        (lambda a, b: EgressPolicy(deny=(net("0.0.0.0/0"),)), "ConnectionRefusedError", "ConnectionRefusedError"),
        (lambda a, b: EgressPolicy((net(a),), (net("0.0.0.0/0"),)), "open", "ConnectionRefusedError"),
        (lambda a, b: EgressPolicy((net(a),), (net(a), net(b))), "open", "ConnectionRefusedError"),
        (lambda a, b: EgressPolicy((net("198.18.0.0/15"),), (net(a),), False), "open", "open"),
    ],
)  # fmt: skip
async def test_allow_beats_deny_beats_the_default(
    network: HostNetwork, internet: Internet, policy: Any, address: str, other: str
) -> None:
    """A denied connection fails at once, it does not hang."""
    slot = await network.create(policy(internet.address, internet.other))
    server, port = internet.socket()
    with server:
        for to, expected in ((internet.address, address), (internet.other, other)):
            with guest_socket(slot) as client:
                assert connect(client, to, port) == expected


async def test_policy_can_be_replaced_many_times(network: HostNetwork, internet: Internet) -> None:
    slot = await network.create(EVERYTHING)
    server, port = internet.socket()
    custom = EgressPolicy(allow=(net(internet.address),), allow_internet=False)
    wide = EgressPolicy(deny=tuple(IPv4Network((n << 8, 24)) for n in range(0x0B0000, 0x0B0000 + 4000)))
    with server:
        for policy in (NOTHING, custom, custom, wide, custom, EVERYTHING, wide, NOTHING, EVERYTHING, custom):
            await network.set_policy(slot, policy)
            with guest_socket(slot) as client:
                opened = connect(client, internet.address, port) == "open"
            assert opened is policy.permits(internet.address)


async def test_a_new_policy_ends_an_established_tcp_connection(
    network: HostNetwork, internet: Internet
) -> None:
    slot = await network.create(EVERYTHING)
    server, port = internet.socket()
    with server, guest_socket(slot) as client:
        assert connect(client, internet.address, port) == "open"
        accepted, _ = server.accept()
        with accepted:
            await network.set_policy(slot, EgressPolicy(deny=(net(internet.address),)))
            client.sendall(b"x")
            with pytest.raises(ConnectionResetError):
                client.recv(1)


async def test_a_new_policy_holds_for_answers_of_an_established_flow(
    network: HostNetwork, internet: Internet
) -> None:
    """Also what the other side still sends is kept out: the first thing that arrives is from after it was allowed."""
    slot = await network.create(EVERYTHING)
    server, port = internet.socket(socket.SOCK_DGRAM)
    with server, guest_socket(slot, socket.SOCK_DGRAM) as client:
        client.sendto(b"question", (str(internet.address), port))
        _, back = server.recvfrom(100)
        server.sendto(b"answer", back)
        assert client.recv(100) == b"answer"
        for denying in (NOTHING, EgressPolicy(deny=(net(internet.address),))):
            await network.set_policy(slot, denying)
            server.sendto(b"forbidden", back)
            await network.set_policy(slot, EVERYTHING)
            server.sendto(b"fence", back)
            assert client.recv(100) == b"fence"


async def test_forged_sources_do_not_leave(network: HostNetwork, internet: Internet) -> None:
    slot, other = await network.create(EVERYTHING), await network.create(EVERYTHING)
    server, port = internet.socket(socket.SOCK_DGRAM)
    with server, guest_socket(slot, socket.SOCK_RAW, protocol=socket.IPPROTO_RAW) as raw:
        forged = (
            other.address,
            slot.gateway,
            slot.address - 2,
            internet.other,
            internet.host_address,
            "127.0.0.1",
            "8.8.8.8",
            "0.0.0.0",
        )
        for source in forged:
            packet = lab.udp_packet(source, internet.address, port, b"forged")
            # The kernel of a hostile machine would not look at the source; here the cable is written to directly.
            _send_frame(slot, packet)
        raw.sendto(lab.udp_packet(slot.address, internet.address, port, b"true"), (str(internet.address), 0))
        assert server.recv(100) == b"true"
        assert is_silent(server)


async def test_other_sandboxes_are_out_of_reach(instance: str, open_network: Any, internet: Internet) -> None:
    """Neither in the same instance nor in another one, even when an operator opens the range they are in."""
    everything_internal = FirewallConfig(extra_allowed_internal=(net("10.0.0.0/8"),))
    network = await open_network(instance, everything_internal)
    neighbour = await open_network(new_instance_id(), everything_internal)
    slot = await network.create(EgressPolicy(allow=(net("10.200.0.0/16"),)))
    for target in (await network.create(EVERYTHING), await neighbour.create(EVERYTHING)):
        tcp, port = listening(guest_socket(target))
        udp, udp_port = listening(guest_socket(target, socket.SOCK_DGRAM))
        with tcp, udp, guest_socket(slot) as client, guest_socket(slot, socket.SOCK_DGRAM) as sender:
            client.setblocking(False)
            assert client.connect_ex((str(target.address), port)) != 0
            sender.sendto(b"forbidden", (str(target.address), udp_port))
            fence_to_host(slot)
            fence_to_host(target)
            assert is_silent(tcp)
            assert is_silent(udp)


async def test_no_address_of_the_host_can_be_reached(network: HostNetwork, internet: Internet) -> None:
    slot, other = await network.create(EVERYTHING), await network.create(EVERYTHING)
    tcp, port = listening(host_socket())
    udp, udp_port = listening(host_socket(socket.SOCK_DGRAM))
    addresses = {
        "127.0.0.1",
        str(slot.gateway),
        str(other.gateway),
        str(internet.host_address),
        *_host_addresses(),
    }
    everyone = {
        "255.255.255.255",
        str(slot.subnet.broadcast_address),
        "224.0.0.1",
        str(slot.subnet.network_address),
    }
    with tcp, udp:
        assert len(addresses) >= 4
        for address in addresses:
            with guest_socket(slot) as client:
                client.setblocking(False)
                client.connect_ex((address, port))
        for address in addresses | everyone:
            _send_frame(slot, lab.udp_packet(slot.address, address, udp_port, b"forbidden"))
            _send_frame(slot, lab.udp_packet(slot.address, address, udp_port, b"forbidden"), b"\xff" * 6)
        fence_to_host(slot)
        assert is_silent(tcp)
        assert is_silent(udp)


async def test_the_same_packets_arrive_when_the_filter_is_away(network: HostNetwork) -> None:
    """Control of the test above: it is the packet filter that keeps them out, not how they are made."""
    slot = await network.create(EVERYTHING)
    udp, udp_port = listening(host_socket(socket.SOCK_DGRAM))
    with udp:
        await network._supervisor.stop()  # pyright: ignore[reportPrivateUsage]
        subprocess.run(["nft", "delete", "table", "inet", f"forkyard_{slot.instance}"], check=True)
        _send_frame(slot, lab.udp_packet(slot.address, slot.gateway, udp_port, b"arrives"))
        assert udp.recv(100) == b"arrives"


async def test_internal_ranges_stay_denied_whatever_a_policy_allows(
    network: HostNetwork, internet: Internet
) -> None:
    internal = (
        "10.1.2.3",
        "172.16.9.9",
        "192.168.3.4",
        "169.254.169.254",
        "100.64.0.1",
        "240.0.0.1",
        str(internet.internal),
    )
    slot = await network.create(EgressPolicy(allow=(net("0.0.0.0/0"),)))
    await network.set_policy(slot, EgressPolicy(allow=tuple(net(address) for address in internal)))
    server, port = internet.socket()
    with server:
        for address in internal:
            with guest_socket(slot) as client:
                assert connect(client, address, port) == "ConnectionRefusedError", address
        assert is_silent(server)


async def test_an_operator_can_open_an_internal_network(
    instance: str, open_network: Any, internet: Internet
) -> None:
    network = await open_network(instance, FirewallConfig(extra_allowed_internal=(net(internet.internal),)))
    server, port = internet.socket()
    with server:
        for policy, expected in ((EVERYTHING, "open"), (NOTHING, "ConnectionRefusedError")):
            slot = await network.create(policy)
            with guest_socket(slot) as client:
                assert connect(client, internet.internal, port) == expected


async def test_an_operator_can_deny_more_networks(
    instance: str, open_network: Any, internet: Internet
) -> None:
    network = await open_network(instance, FirewallConfig(extra_denied=(net(internet.other),)))
    slot = await network.create(EgressPolicy(allow=(net("0.0.0.0/0"),)))
    server, port = internet.socket()
    with server:
        for address, expected in ((internet.address, "open"), (internet.other, "ConnectionRefusedError")):
            with guest_socket(slot) as client:
                assert connect(client, address, port) == expected


async def test_nobody_outside_can_open_a_connection_to_a_sandbox(
    network: HostNetwork, internet: Internet
) -> None:
    slot = await network.create(EVERYTHING)
    tcp, port = listening(guest_socket(slot))
    udp, udp_port = listening(guest_socket(slot, socket.SOCK_DGRAM))
    client, _ = internet.socket(socket.SOCK_DGRAM)
    opener = lab.inside(internet.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    with tcp, udp, client, opener:
        opener.setblocking(False)
        opener.connect_ex((str(slot.address), port))
        client.sendto(b"forbidden", (str(slot.address), udp_port))
        with guest_socket(slot, socket.SOCK_DGRAM) as asker:
            asker.sendto(b"fence", (str(internet.address), client.getsockname()[1]))
            _, back = client.recvfrom(100)
            client.sendto(b"fence", back)
            assert asker.recv(100) == b"fence"
        assert is_silent(tcp)
        assert is_silent(udp)


async def test_ipv6_is_dead_in_both_directions(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING)
    with (
        guest_socket(slot, socket.SOCK_DGRAM, socket.AF_INET6) as client,
        pytest.raises(OSError, match=r"address|unreachable"),
    ):
        client.sendto(b"x", ("2001:db8::1", 9, 0, 0))
    # A hostile machine sends frames as it likes, and an administrator may switch IPv6 on for all interfaces.
    setting = f"/proc/sys/net/ipv6/conf/{slot.interface}/disable_ipv6"
    with open(setting, "w") as file:
        file.write("0")
    subprocess.run(["ip", "-6", "addr", "add", "fd99:1::1/64", "dev", slot.interface, "nodad"], check=True)
    udp, port = listening(host_socket(socket.SOCK_DGRAM, socket.AF_INET6), "::")
    with udp:
        _send_frame(slot, _udp6("fd99:1::2", "fd99:1::1", port), kind=0x86DD)
        fence_to_host(slot)
        assert is_silent(udp)
        await network._supervisor.stop()  # pyright: ignore[reportPrivateUsage]
        subprocess.run(["nft", "delete", "table", "inet", f"forkyard_{slot.instance}"], check=True)
        _send_frame(slot, _udp6("fd99:1::2", "fd99:1::1", port), kind=0x86DD)
        assert udp.recv(100) == b"six"


async def test_a_cut_network_is_silent_at_once_and_comes_back(
    network: HostNetwork, internet: Internet
) -> None:
    slot = await network.create(EVERYTHING)
    server, port = internet.socket()
    udp_server, udp_port = internet.socket(socket.SOCK_DGRAM)
    guest_server, guest_port = listening(guest_socket(slot))
    with (
        server,
        udp_server,
        guest_server,
        guest_socket(slot) as client,
        host_socket() as caller,
        guest_socket(slot, socket.SOCK_DGRAM) as udp,
    ):
        assert connect(client, internet.address, port) == "open"
        assert connect(caller, slot.address, guest_port) == "open"
        accepted, _ = server.accept()
        called, _ = guest_server.accept()
        udp.sendto(b"before", (str(internet.address), udp_port))
        _, back = udp_server.recvfrom(100)
        with accepted, called:
            for connection in (accepted, called):
                connection.settimeout(lab.PATIENCE)
            await network.cut(slot)
            await network.cut(slot)
            # Datagrams are not sent again: what was sent while cut must never arrive.
            udp.sendto(b"forbidden", (str(internet.address), udp_port))
            udp_server.sendto(b"forbidden", back)
            client.sendall(b"1")
            caller.sendall(b"2")
            called.sendall(b"3")
            assert all(is_silent(s) for s in (accepted, called, caller, udp, udp_server))
            await network.uncut(slot)
            await network.uncut(slot)
            udp.sendto(b"after", (str(internet.address), udp_port))
            udp_server.sendto(b"after", back)
            assert (udp_server.recv(100), udp.recv(100)) == (b"after", b"after")
            # TCP sends again by itself.
            assert (accepted.recv(1), called.recv(1), caller.recv(1)) == (b"1", b"2", b"3")


async def test_a_slot_can_begin_its_life_cut(network: HostNetwork) -> None:
    slot = await network.create(EVERYTHING, cut=True)
    server, port = listening(guest_socket(slot))
    with server, host_socket() as client:
        client.setblocking(False)
        client.connect_ex((str(slot.address), port))
        assert is_silent(server)
        await network.uncut(slot)
        client.settimeout(lab.PATIENCE)
        server.accept()[0].close()


async def test_one_guest_cannot_fill_the_hosts_connection_table(
    instance: str, open_network: Any, internet: Internet
) -> None:
    network = await open_network(instance, FirewallConfig(max_connections=20))
    slot, other = await network.create(EVERYTHING), await network.create(EVERYTHING)
    server, port = internet.socket(socket.SOCK_DGRAM)
    with server, guest_socket(slot, socket.SOCK_RAW, protocol=socket.IPPROTO_RAW) as raw:
        for source_port in range(10000, 10100):
            packet = lab.udp_packet(slot.address, internet.address, port, b"flood", source_port)
            raw.sendto(packet, (str(internet.address), 0))
        with guest_socket(other, socket.SOCK_DGRAM) as polite:
            polite.sendto(b"other", (str(internet.address), port))
        arrived = 0
        while server.recv(100) != b"other":
            arrived += 1
        assert arrived == 20


async def test_a_reused_slot_gets_nothing_that_was_meant_for_its_last_guest(
    network: HostNetwork, internet: Internet
) -> None:
    slot = await network.create(EVERYTHING)
    server, port = internet.socket(socket.SOCK_DGRAM)
    with server:
        with guest_socket(slot, socket.SOCK_DGRAM) as first:
            first.bind(("0.0.0.0", 5555))
            first.sendto(b"q", (str(internet.address), port))
            _, back = server.recvfrom(100)
        await network.recycle(slot, EVERYTHING)
        with guest_socket(slot, socket.SOCK_DGRAM) as second:
            second.bind(("0.0.0.0", 5555))
            server.sendto(b"for the first", back)
            other, other_port = internet.socket(socket.SOCK_DGRAM)
            with other:
                second.sendto(b"q", (str(internet.address), other_port))
                other.sendto(b"fence", other.recvfrom(100)[1])
            assert second.recv(100) == b"fence"


async def test_a_reused_slot_can_be_called_from_the_same_host_port(network: HostNetwork) -> None:
    """What the host's table remembers of a dead guest's connection does not keep a new one from the same port."""
    slot = await network.create(EVERYTHING)

    def call(client: socket.socket) -> None:
        server = guest_socket(slot)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", 49983))
        server.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.bind((str(slot.gateway), 40123))
        with server:
            assert connect(client, slot.address, 49983) == "open"
            server.accept()[0].close()

    with host_socket() as first:
        call(first)
        await network.cut(slot)  # its reset does not reach the guest, so the entry stays "established"
    await network.recycle(slot, EVERYTHING)
    with host_socket() as second:
        call(second)


async def test_an_instance_that_goes_does_not_touch_another(
    instance: str, open_network: Any, internet: Internet
) -> None:
    network, other = await open_network(instance), await open_network(new_instance_id())
    kept = await other.create(EVERYTHING)
    await asyncio.gather(*(network.create(EgressPolicy(deny=(net("9.9.9.9"),))) for _ in range(4)))
    before = lab.table_state(kept.instance)
    server, port = internet.socket()
    with server, guest_socket(kept) as client:
        assert connect(client, internet.address, port) == "open"
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(lab.PATIENCE)
            await network.sweep(set())
            await network.teardown()
            client.sendall(b"here")
            assert accepted.recv(4) == b"here"
    assert lab.leftovers(instance) == []
    assert await other.list_own() == {kept.number}
    assert lab.table_state(kept.instance) == before


async def test_deleting_the_table_is_repaired(network: HostNetwork, internet: Internet) -> None:
    slot = await network.create(EgressPolicy(deny=(net(internet.other),)))
    before = lab.table_state(slot.instance)
    for damage in (
        f"flush table inet forkyard_{slot.instance}",
        f"delete table inet forkyard_{slot.instance}",
    ):
        subprocess.run(["nft", damage], check=True)
        await asyncio.to_thread(
            lab.eventually, lambda: lab.table_state(slot.instance) == before, f"repair of {damage}"
        )


async def test_a_change_right_behind_a_write_of_ours_is_repaired(
    network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await network.create(EVERYTHING)
    before = lab.table_state(slot.instance)
    delete = ["nft", f"delete table inet forkyard_{slot.instance}"]
    run_nft, writes = firewall._run_nft, 0

    async def and_somebody_deletes_it(text: str) -> None:
        nonlocal writes
        await run_nft(text)
        writes += 1
        if writes == 1:
            subprocess.run(delete, check=True)

    monkeypatch.setattr(firewall, "_run_nft", and_somebody_deletes_it)
    subprocess.run(delete, check=True)
    await asyncio.to_thread(
        lab.eventually, lambda: writes > 1 and lab.table_state(slot.instance) == before, "the second repair"
    )
    # Its own writes are nobody else's.
    with pytest.raises(AssertionError):
        await asyncio.to_thread(lab.eventually, lambda: writes > 2, "a third write", patience_s=1.5)


def _host_addresses() -> list[str]:
    shown = subprocess.run(
        ["ip", "-4", "-o", "addr", "show"], capture_output=True, text=True, check=True
    ).stdout
    return [line.split()[3].partition("/")[0] for line in shown.splitlines()]


def _send_frame(slot: Slot, packet: bytes, mac: bytes | None = None, kind: int = 0x0800) -> None:
    """Put a packet on the cable as a hostile machine would: no routing, no checks; to the host's MAC or another."""
    with guest_socket(slot, socket.SOCK_RAW, socket.AF_PACKET, 0) as cable:
        cable.bind(("eth0", 0))
        if kind == 0x0800:
            packet = _with_checksum(packet)
        cable.send((mac or slot.host_mac) + slot.guest_mac + struct.pack("!H", kind) + packet)


def _with_checksum(packet: bytes) -> bytes:
    total = sum(struct.unpack("!10H", packet[:10] + b"\0\0" + packet[12:20]))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return packet[:10] + struct.pack("!H", ~total & 0xFFFF) + packet[12:]


def _udp6(source: str, destination: str, port: int) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    payload = b"six\0"
    length = 8 + 3
    words = addresses + struct.pack("!II", length, 17) + struct.pack("!HHHH", 4000, port, length, 0) + payload
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    udp = struct.pack("!HHHH", 4000, port, length, ~total & 0xFFFF) + b"six"
    return struct.pack("!IHBB", 6 << 28, length, 17, 64) + addresses + udp
