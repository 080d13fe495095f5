"""Network slots: making, checking, cleaning and removing them. All methods block; `network.py` calls them in threads.

A slot is a reservation, a network namespace, and a veth pair between it and the host. They are made in this
order and removed in the opposite one, so that whatever a kill leaves behind is found by its reservation or name.
"""

import fcntl
import os
import secrets
import socket
import struct
import threading
from collections.abc import Collection, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.host import namespaces
from forkyard.host.addresses import PREFIX_LENGTH, AddressPool, Slot
from forkyard.host.errors import NetlinkError, NoFreeSlot, RequirementMissing, SlotNotFound
from forkyard.host.netlink import conntrack, links
from forkyard.host.netlink.codec import Request
from forkyard.host.netlink.connection import NETFILTER, ROUTE, NetlinkConnection
from forkyard.host.netlink.links import VethEnd
from forkyard.host.reservations import Reservations

GUEST_INTERFACE = "eth0"
DEFAULT_MTU = 1500
MINIMUM_MTU = 576

crash_points("slots.reserved", "slots.namespace", "slots.connected", "slots.disconnected", "slots.unreleased")

_FEW = 4
"""Slots whose connections are listed one by one."""

_GET_MTU = 0x8921
_SOMEWHERE = IPv4Address("198.51.100.1")
"""An address that no network has: its route is the default route."""

# Only the slot's own addresses are answered for, nothing is redirected, and what comes from the guest must be
# routed back to the guest. IPv6 is off.
_HOST_END = (
    ("ipv4/conf/{}/rp_filter", "1"),
    ("ipv4/conf/{}/arp_ignore", "1"),
    ("ipv4/conf/{}/send_redirects", "0"),
    ("ipv4/conf/{}/accept_redirects", "0"),
    ("ipv4/conf/{}/log_martians", "0"),
    ("ipv6/conf/{}/disable_ipv6", "1"),
)
_GUEST_END = (("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1"))


@dataclass(slots=True)
class _Numbers:
    """Which slot numbers this process has given out or may not give out."""

    used: dict[int, Slot] = field(default_factory=dict[int, Slot])
    refused: set[int] = field(default_factory=set[int])
    """Their subnets are used by something else on this host."""
    next: int = 0


class Slots:
    """The network slots of one instance. Open it in the thread of the host's network namespace."""

    def __init__(self, pool: AddressPool, reservations: Reservations, mtu: int | None = None) -> None:
        """`mtu` of both ends; None for that of the host's default route, at most 1500."""
        self._pool = pool
        self._reservations = reservations
        self._mtu = mtu or DEFAULT_MTU
        self._detect_mtu = mtu is None
        self._lock = threading.Lock()
        self._numbers = _Numbers()
        # Interfaces are deleted by group number; nobody else may happen to use the same.
        self._doomed_group = 0x40000000 | secrets.randbits(29)

    def open(self) -> None:
        """Prepare the host. Raises RequirementMissing, HostError, OSError."""
        namespaces.prepare_directory()
        self._reservations.prepare()
        _enable_forwarding()
        self._host = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._route = NetlinkConnection(ROUTE)
        self._conntrack = NetlinkConnection(NETFILTER)
        with self._lock:
            # Names are taken as long as anything of them is left, whatever has become of the reservation.
            for slot in self.own():
                self._numbers.used[slot.number] = slot
            self._numbers.refused.update(self._stray_numbers())
        if self._detect_mtu:
            self._mtu = self._default_mtu()

    def close(self) -> None:
        self._route.close()
        self._conntrack.close()
        os.close(self._host)

    def create(self) -> Slot:
        """Make a slot that nobody has. On an error nothing of it is left.

        Raises NoFreeSlot, NetlinkError, HostError.
        """
        slot = self._reserve()
        try:
            crash_point("slots.reserved")
            namespaces.create(slot.namespace, lambda: self._connect(slot))
            crash_point("slots.connected")
            self._set_up_host_end(slot)
        except BaseException:
            self.remove([slot])
            raise
        return slot

    def adopt(self, number: int) -> Slot:
        """Take over a slot of an earlier process of this instance; the guest's side is not touched.

        Raises SlotNotFound if any part of it is missing.
        """
        slot = next((slot for slot in self.own() if slot.number == number), None)
        if slot is None:
            raise SlotNotFound(f"slot {number} is not reserved by instance {self._pool.instance}")
        try:
            os.close(namespaces.open_namespace(slot.namespace))
            self._set_up_host_end(slot)
        except OSError as error:
            raise SlotNotFound(f"slot {number} is incomplete: {error}") from error
        with self._lock:
            self._numbers.used[number] = slot
        return slot

    def recycle(self, slot: Slot) -> None:
        """Make a slot as new for the next machine: forget neighbours, put the addresses back.

        Only when the old machine's process is dead. Raises SlotNotFound, NetlinkError.
        """
        try:
            self._set_up_host_end(slot)
            self._forget_neighbours(self._route, socket.if_nametoindex(slot.interface))
            namespaces.enter(slot.namespace, lambda: self._set_up_guest_end(slot))
        except OSError as error:
            raise SlotNotFound(f"slot {slot.number} is incomplete: {error}") from error

    def forget_connections(self, slots: Collection[Slot]) -> None:
        """Drop the connection tracking entries of what these slots opened.

        What the host opened to them is left: it ends with the host's own sockets, and a new connection from the same
        port takes such an entry over. The kernel looks through its whole table for every list, 9 ms of CPU with the
        usual 262144 buckets; so beyond a few slots all connections are listed once and sorted out here.
        """
        if len(slots) <= _FEW:
            found = [m for slot in slots for m in self._conntrack.dump(conntrack.list_from(slot.address))]
        else:
            sources = {slot.address.packed for slot in slots}
            listed = self._conntrack.dump(conntrack.list_all())
            found = [m for m in listed if conntrack.source_of(m) in sources]
        self._conntrack.change(conntrack.forget(message) for message in found)

    def remove(self, doomed: Iterable[Slot], connected: Container[int] = ()) -> None:
        """Remove slots with all that belongs to them, as a whole batch in about 20 ms. Missing parts are fine.

        `connected` has the numbers of those with connections to forget. A namespace in which a process still runs
        loses its interface, and goes when the process goes.
        """
        slots = list(doomed)
        if not slots:
            return
        self._delete_interfaces(slot.interface for slot in slots)
        crash_point("slots.disconnected")
        self.forget_connections([slot for slot in slots if slot.number in connected])
        for slot in slots:
            namespaces.remove(slot.namespace)
            crash_point("slots.unreleased")
            self._reservations.release(slot.subnet)
            with self._lock:
                self._numbers.used.pop(slot.number, None)

    def own(self) -> list[Slot]:
        """All slots reserved by this instance, complete or not."""
        return self._reservations.own()

    def sweep(self, keep: set[int]) -> list[int]:
        """Remove everything of this instance but the slots numbered in `keep`; answers the numbers removed."""
        doomed = [slot for slot in self.own() if slot.number not in keep]
        self.remove(doomed, connected={slot.number for slot in doomed})
        strays = self._stray_numbers()
        # What has no reservation has no known address either: take its name apart, touch nothing else.
        self._delete_interfaces(name for name in _interfaces() if self._pool.number_in(name) in strays)
        for name in namespaces.names(f"fy-{self._pool.instance}-"):
            if self._pool.number_in(name) in strays:
                namespaces.remove(name)
        with self._lock:
            self._numbers.refused -= strays
        return sorted({slot.number for slot in doomed} | strays)

    def _stray_numbers(self) -> set[int]:
        """Numbers of namespaces and interfaces of this instance that have no reservation."""
        found = [*namespaces.names(f"fy-{self._pool.instance}-"), *_interfaces()]
        numbers = {number for name in found if (number := self._pool.number_in(name)) is not None}
        return numbers - {slot.number for slot in self.own()}

    def _reserve(self) -> Slot:
        taken = self._reservations.taken()
        for _ in range(self._pool.size):
            with self._lock:
                number = self._numbers.next
                # Round robin: the longer an address rests, the less can be meant for its former owner.
                self._numbers.next = (number + 1) % self._pool.size
                if number in self._numbers.used or number in self._numbers.refused:
                    continue
                slot = self._pool.slot(number)
                if slot.subnet in taken or not self._reservations.take(slot):
                    continue
                self._numbers.used[number] = slot
            if not self._collides(slot):
                return slot
            self._reservations.release(slot.subnet)
            with self._lock:
                self._numbers.used.pop(number, None)
                self._numbers.refused.add(number)
        raise NoFreeSlot(f"no /30 of {self._pool.range} is free on this host; {_RANGE_ADVICE}")

    def _collides(self, slot: Slot) -> bool:
        """Whether the host routes the subnet somewhere else already, more exactly than the whole range."""
        for address in (slot.gateway, slot.address):
            try:
                match = links.parse_route(self._route.get(links.find_route(address)))
            except NetlinkError:
                continue  # no route, or one that says that nothing is there
            if match.prefix_length >= max(1, self._pool.range.prefixlen):
                return True
        return False

    def _connect(self, slot: Slot) -> None:
        """In the new namespace: lay the cable to the host and set up this end of it."""
        crash_point("slots.namespace")
        _write_settings(_GUEST_END, GUEST_INTERFACE)
        near = VethEnd(GUEST_INTERFACE, slot.guest_mac)
        far = VethEnd(slot.interface, slot.host_mac)
        with NetlinkConnection(ROUTE) as connection:
            connection.change(
                [
                    links.link_up(socket.if_nametoindex("lo")),
                    links.create_veth(near, far, self._host, self._mtu),
                ]
            )
            connection.change(_guest_requests(slot))

    def _set_up_guest_end(self, slot: Slot) -> None:
        """In the namespace: addresses and route as they were at first, nothing learned."""
        with NetlinkConnection(ROUTE) as connection:
            self._forget_neighbours(connection, socket.if_nametoindex(GUEST_INTERFACE))
            connection.change(_guest_requests(slot))

    def _set_up_host_end(self, slot: Slot) -> None:
        _write_settings(_HOST_END, slot.interface)
        index = socket.if_nametoindex(slot.interface)
        self._route.change(
            [
                links.set_address(index, slot.gateway, PREFIX_LENGTH),
                links.link_up(index),
                links.set_neighbour(index, slot.address, slot.guest_mac),
            ]
        )

    @staticmethod
    def _forget_neighbours(connection: NetlinkConnection, index: int) -> None:
        entries = [links.parse_neighbour(m) for m in connection.dump(links.list_neighbours(index))]
        connection.change(
            links.delete_neighbour(index, entry.address)
            for entry in entries
            if entry is not None and not entry.permanent
        )

    def _delete_interfaces(self, names: Iterable[str]) -> None:
        requests: list[Request] = []
        for name in names:
            with suppress(OSError):  # there is no such interface
                requests.append(links.set_group(socket.if_nametoindex(name), self._doomed_group))
        if requests:
            self._route.change([*requests, links.delete_group(self._doomed_group)])

    def _default_mtu(self) -> int:
        try:
            match = links.parse_route(self._route.get(links.find_route(_SOMEWHERE)))
            name = socket.if_indextoname(match.interface)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                answer = fcntl.ioctl(probe, _GET_MTU, struct.pack("16s16x", name.encode()))
        except (NetlinkError, OSError):
            return DEFAULT_MTU
        (mtu,) = struct.unpack_from("=i", answer, 16)
        return max(MINIMUM_MTU, min(mtu, DEFAULT_MTU))


_RANGE_ADVICE = (
    "give the server another slot range, or remove what dead instances left with `forkyard doctor --clean`"
)


def _guest_requests(slot: Slot) -> list[Request]:
    index = socket.if_nametoindex(GUEST_INTERFACE)
    return [
        links.set_address(index, slot.address, PREFIX_LENGTH),
        links.link_up(index),
        links.set_default_route(index, slot.gateway),
    ]


def _interfaces() -> list[str]:
    return [name for _index, name in socket.if_nameindex()]


def _write_settings(settings: Iterable[tuple[str, str]], interface: str) -> None:
    """Settings under /proc/sys/net of the calling thread's namespace."""
    for path, value in settings:
        full = f"/proc/sys/net/{path.format(interface)}"
        try:
            fd = os.open(full, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if "ipv6" in path:
                continue  # a kernel without IPv6
            raise
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def _enable_forwarding() -> None:
    setting = Path("/proc/sys/net/ipv4/ip_forward")
    if setting.read_text().strip() == "1":
        return
    try:
        setting.write_text("1")
    except OSError as error:
        raise RequirementMissing(
            f"IP forwarding is off and cannot be switched on ({error.strerror}); "
            "run `sysctl -w net.ipv4.ip_forward=1` on the host"
        ) from error
