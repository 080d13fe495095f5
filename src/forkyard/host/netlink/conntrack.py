"""Messages of connection tracking: finding and forgetting the connections of one address."""

import errno
import struct
from ipaddress import IPv4Address

from forkyard.host.netlink import codec
from forkyard.host.netlink.codec import Message, Request, attribute, nested, u32

_SUBSYSTEM = 1 << 8
_GET, _DELETE = 1 | _SUBSYSTEM, 2 | _SUBSYSTEM
_HEADER = struct.pack("!BBH", 2, 0, 0)  # family IPv4

_ORIGINAL, _ZONE, _FILTER = 1, 18, 25
_TUPLE_IP, _IP_SOURCE = 1, 1
_FILTER_ORIGINAL_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_MATCH_SOURCE = 1 << 0


def list_from(address: IPv4Address) -> Request:
    """Connections that `address` opened; the kernel does the picking (Linux 5.8)."""
    wanted = nested(_ORIGINAL, nested(_TUPLE_IP, attribute(_IP_SOURCE, address.packed)))
    flags = nested(_FILTER, u32(_FILTER_ORIGINAL_FLAGS, _MATCH_SOURCE), u32(_FILTER_REPLY_FLAGS, 0))
    return Request(f"listing connections of {address}", _GET, _HEADER + wanted + flags)


def list_all() -> Request:
    return Request("listing connections", _GET, _HEADER)


def source_of(found: Message) -> bytes:
    """The address that opened a listed connection, packed."""
    original = codec.parse_attributes(found.body[len(_HEADER) :])[_ORIGINAL]
    addresses = codec.parse_attributes(codec.parse_attributes(original)[_TUPLE_IP])
    return addresses.get(_IP_SOURCE, b"")


def forget(found: Message) -> Request:
    """Delete a listed connection. One that has ended meanwhile is fine."""
    attributes = codec.parse_attributes(found.body[len(_HEADER) :])
    zone = attribute(_ZONE, attributes[_ZONE]) if _ZONE in attributes else b""
    body = _HEADER + attribute(_ORIGINAL | 0x8000, attributes[_ORIGINAL]) + zone
    return Request("forgetting a connection", _DELETE, body, ignore=frozenset({errno.ENOENT}))
