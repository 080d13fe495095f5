"""Bytes of netlink: headers and attributes. Host byte order, everything padded to 4 bytes."""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = struct.Struct("=IHHII")
"""Length with header, type, flags, sequence number, port."""

_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_NESTED = 0x8000

REQUEST = 0x1
ACK = 0x4
REPLACE = 0x100
EXCLUSIVE = 0x200
CREATE = 0x400
APPEND = 0x800
DUMP = 0x300

NOOP = 1
ERROR = 2
DONE = 3

_ERROR_CAPPED = 0x100
_ERROR_ATTRIBUTES = 0x200
_ERROR_MESSAGE = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One message without its header. `what` says in an error what was tried."""

    what: str
    type: int
    body: bytes
    flags: int = 0
    ignore: frozenset[int] = frozenset()
    """Errnos (positive) that mean the wanted state is there already."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it came in."""

    type: int
    flags: int
    sequence: int
    port: int
    """In an announcement: the address of the socket that made the change."""
    body: bytes


def attribute(kind: int, data: bytes) -> bytes:
    """One attribute. Its data must be shorter than 64 KB."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """A zero-terminated string."""
    return attribute(kind, value.encode() + b"\0")


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def u32(kind: int, value: int) -> bytes:
    """In host byte order, as routing messages have it."""
    return attribute(kind, value.to_bytes(4, sys.byteorder))


def be32(kind: int, value: int) -> bytes:
    """In network byte order, as the packet filter's messages have it."""
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def frame(request: Request, sequence: int, flags: int = 0) -> bytes:
    """The whole message. Bodies are padded, so messages can be joined."""
    length = HEADER.size + len(request.body)
    return HEADER.pack(length, request.type, request.flags | flags | REQUEST, sequence, 0) + request.body


def parse_messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram. Raises ValueError on a length that cannot be."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, flags, sequence, port = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > len(data):
            raise ValueError("a netlink message has an impossible length")
        yield Message(kind, flags, sequence, port, data[offset + HEADER.size : offset + length])
        offset += (length + 3) & ~3


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by kind; of a kind that repeats the last counts. Raises ValueError on an impossible length."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > len(data):
            raise ValueError("a netlink attribute has an impossible length")
        found[kind & _TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def parse_error(message: Message) -> tuple[int, str]:
    """Errno (positive, 0 for an acknowledgement) and the kernel's sentence ("" if it has none)."""
    (number,) = struct.unpack_from("=i", message.body)
    if not message.flags & _ERROR_ATTRIBUTES:
        return -number, ""
    (length,) = struct.unpack_from("=I", message.body, 4)
    skip = HEADER.size if message.flags & _ERROR_CAPPED else (length + 3) & ~3
    said = parse_attributes(message.body[4 + skip :]).get(_ERROR_MESSAGE, b"")
    return -number, said.rstrip(b"\0").decode(errors="replace")
