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
_TUPLE_IP, _IP_SOURCE, _IP_DESTINATION = 1, 1, 2
_FILTER_ORIGINAL_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_MATCH_SOURCE, _MATCH_DESTINATION = 1 << 0, 1 << 1


def list_from(address: IPv4Address) -> Request:
    """Connections that `address` opened; the kernel does the picking (Linux 5.8)."""
    return _list(_IP_SOURCE, _MATCH_SOURCE, address)


def list_to(address: IPv4Address) -> Request:
    """Connections that were opened to `address`."""
    return _list(_IP_DESTINATION, _MATCH_DESTINATION, address)


def forget(found: Message) -> Request:
    """Delete a listed connection. One that has ended meanwhile is fine."""
    attributes = codec.parse_attributes(found.body[len(_HEADER) :])
    zone = attribute(_ZONE, attributes[_ZONE]) if _ZONE in attributes else b""
    body = _HEADER + attribute(_ORIGINAL | 0x8000, attributes[_ORIGINAL]) + zone
    return Request("forgetting a connection", _DELETE, body, ignore=frozenset({errno.ENOENT}))


def _list(kind: int, flag: int, address: IPv4Address) -> Request:
    wanted = nested(_ORIGINAL, nested(_TUPLE_IP, attribute(kind, address.packed)))
    flags = nested(_FILTER, u32(_FILTER_ORIGINAL_FLAGS, flag), u32(_FILTER_REPLY_FLAGS, 0))
    return Request(f"listing connections of {address}", _GET, _HEADER + wanted + flags)
