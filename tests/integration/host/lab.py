"""A small internet for tests: a namespace beside the host with addresses that count as public.

Sockets stay in the namespace they were opened in, so one process can play guest, host and internet at once.
A *fence* is a packet that is allowed and is sent after a forbidden one on the same way: when the fence has arrived and
the forbidden one has not, it never will. That makes "nothing arrives" a fact and not a matter of waiting.
"""

import json
import os
import random
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from forkyard.base.ids import new_instance_id
from forkyard.host import namespaces
from forkyard.host.addresses import AddressPool, Slot
from forkyard.host.netlink import links
from forkyard.host.netlink.connection import ROUTE, NetlinkConnection
from forkyard.host.netlink.links import VethEnd
from forkyard.host.reservations import DIRECTORY as RESERVATIONS
from forkyard.host.ruleset import CONNECTIONS

PATIENCE = 10.0
"""Seconds after which something that should happen counts as missing."""


def missing_rights() -> str:
    """Why the real thing cannot be tested here; "" if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode != 0:
        return "needs the right to make network namespaces"
    if subprocess.run(["nft", "list", "tables"], capture_output=True, check=False).returncode != 0:
        return "needs nftables"
    return ""


def inside(namespace: str, make: Callable[[], socket.socket]) -> socket.socket:
    return namespaces.enter(namespace, make)


def guest_socket(
    slot: Slot, kind: int = socket.SOCK_STREAM, family: int = socket.AF_INET, protocol: int = 0
) -> socket.socket:
    """A socket in the slot's namespace, with a deadline."""
    made = inside(slot.namespace, lambda: socket.socket(family, kind, protocol))
    made.settimeout(PATIENCE)
    return made


def host_socket(kind: int = socket.SOCK_STREAM, family: int = socket.AF_INET) -> socket.socket:
    made = socket.socket(family, kind)
    made.settimeout(PATIENCE)
    return made


def listening(made: socket.socket, address: str = "0.0.0.0") -> tuple[socket.socket, int]:
    """Bind (and for TCP listen on) a free port; answers it."""
    made.bind((address, 0))
    if made.type == socket.SOCK_STREAM:
        made.listen(64)
    return made, made.getsockname()[1]


def connect(made: socket.socket, address: object, port: int) -> str:
    """ "open", or what the connection failed with."""
    try:
        made.connect((str(address), port))
    except OSError as error:
        return type(error).__name__
    return "open"


def is_silent(made: socket.socket) -> bool:
    """Whether nothing (no datagram, no connection) is waiting there now."""
    readable, _, _ = select.select([made], [], [], 0)
    return not readable


def eventually(condition: Callable[[], object], what: str, *, patience_s: float = PATIENCE) -> Any:
    """Look until it is true. Raises AssertionError after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.005)


def udp_packet(
    source: object, destination: object, port: int, payload: bytes, source_port: int = 4000
) -> bytes:
    """An IPv4 datagram with any source, for a raw socket (the kernel fills in the checksum)."""
    udp = struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0,
        IPv4Address(str(source)).packed, IPv4Address(str(destination)).packed,
    )  # fmt: skip
    return header + udp


@dataclass(frozen=True, slots=True)
class Internet:
    """A namespace that is routed to by the host. `addresses` are all its own; the last one is internal."""

    namespace: str
    interface: str
    """The host's end of the cable. Its name must not begin like those of slots, which may not reach each other."""
    host_address: IPv4Address
    address: IPv4Address
    other: IPv4Address
    internal: IPv4Address

    def socket(
        self, kind: int = socket.SOCK_STREAM, address: object = "0.0.0.0"
    ) -> tuple[socket.socket, int]:
        """A bound socket there; TCP ones listen."""
        made = inside(self.namespace, lambda: socket.socket(socket.AF_INET, kind))
        made.settimeout(PATIENCE)
        return listening(made, str(address))


def build_internet() -> Internet:
    """Addresses are drawn from the range for benchmarks, which is not among the internal ones."""
    tag = new_instance_id()
    base = IPv4Address("198.18.0.0") + random.randrange(1 << 14) * 8
    internal = IPv4Address("10.99.0.0") + random.randrange(1 << 16)
    net = Internet(f"fytest-{tag}", f"tst-{tag}", base + 1, base + 2, base + 3, internal)
    near, far = (
        VethEnd("eth0", b"\x02\x67" + net.address.packed),
        VethEnd(net.interface, b"\x02\x67" + base.packed),
    )
    host = os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    def set_up() -> None:
        with NetlinkConnection(ROUTE) as connection:
            connection.change(
                [links.create_veth(near, far, host, 1500), links.link_up(socket.if_nametoindex("lo"))]
            )
            index = socket.if_nametoindex("eth0")
            connection.change([links.set_address(index, a, 29) for a in (net.address, net.other)])
            connection.change([links.set_address(index, net.internal, 32)])
            connection.change([links.set_default_route(index, net.host_address)])

    try:
        namespaces.prepare_directory()
        namespaces.create(net.namespace, set_up)
    finally:
        os.close(host)
    index = socket.if_nametoindex(far.name)
    with NetlinkConnection(ROUTE) as connection:
        connection.change([links.set_address(index, net.host_address, 29), links.link_up(index)])
    subprocess.run(["ip", "route", "add", f"{net.internal}/32", "via", str(net.address)], check=True)
    return net


def destroy_internet(net: Internet) -> None:
    """The cable first: a socket that is still open there would keep it alive."""
    subprocess.run(["ip", "link", "delete", net.interface], check=True)
    namespaces.remove(net.namespace)


def leftovers(instance: str) -> list[str]:
    """Everything on this host that carries the instance's id."""
    pool = AddressPool(instance)
    found = namespaces.names(f"fy-{instance}-")
    found += [name for _, name in socket.if_nameindex() if pool.number_in(name) is not None]
    found += [path.name for path in RESERVATIONS.iterdir() if f'"{instance}"' in path.read_text()]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return found + [line for line in tables.splitlines() if instance in line]


def table_state(instance: str) -> Any:
    """What the kernel has of an instance's table, without handles and without the order of what has none."""
    listed = subprocess.run(
        ["nft", "-j", "list", "table", "inet", f"forkyard_{instance}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        return None
    state: dict[str, Any] = {}
    for entry in json.loads(listed.stdout)["nftables"]:
        ((kind, content),) = entry.items()
        content.pop("handle", None)
        if kind in ("set", "map"):
            # What packets have added to a set is no part of it.
            filled_by_packets = content["name"] == CONNECTIONS
            content["elem"] = [] if filled_by_packets else sorted(content.get("elem", []), key=repr)
        if kind == "rule":
            rules = [_with_plain_ranges(expression) for expression in content["expr"]]
            state.setdefault(f"rules of {content['chain']}", []).append(rules)
        elif kind != "metainfo":
            state[f"{kind} {content['name']}"] = content
    return state


def _with_plain_ranges(expression: Any) -> Any:
    """nft writes a list of one address as a comparison, and ranges in several ways; all become pairs of addresses."""
    match = expression.get("match", {})
    if "ip daddr" not in str(match.get("left")):
        return expression
    right = match["right"]
    elements = right["set"] if isinstance(right, dict) and "set" in right else [right]
    return {"match": {**match, "right": [_bounds(element) for element in elements]}}


def _bounds(element: Any) -> tuple[str, str]:
    if isinstance(element, str):
        return element, element
    if "range" in element:
        return element["range"][0], element["range"][1]
    net = IPv4Network((element["prefix"]["addr"], element["prefix"]["len"]))
    return str(net[0]), str(net[-1])


def clean(instance: str) -> None:
    """Remove what a failed test may have left."""
    subprocess.run(
        ["nft", "delete", "table", "inet", f"forkyard_{instance}"], capture_output=True, check=False
    )
    for name in namespaces.names(f"fy-{instance}-"):
        namespaces.remove(name)
    for _, name in socket.if_nameindex():
        if AddressPool(instance).number_in(name) is not None:
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    for path in RESERVATIONS.iterdir():
        if f'"{instance}"' in path.read_text():
            path.unlink(missing_ok=True)
