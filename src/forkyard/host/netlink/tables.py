"""Messages of nftables: elements of sets and maps, and chains that decide by destination.

The tables themselves are written as text (host/ruleset.py); this is for what changes while slots come and go.
"""

import ctypes
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forkyard.host.egress import Range
from forkyard.host.netlink import codec
from forkyard.host.netlink.codec import Message, Request, attribute, be32, nested, text, u8

NFT_GROUP = 7
"""Multicast group in which the kernel announces changes of tables."""

_NETFILTER = 12
_SUBSYSTEM = 10 << 8
_NEW_CHAIN, _DELETE_CHAIN = 3 | _SUBSYSTEM, 5 | _SUBSYSTEM
_NEW_RULE, _DELETE_RULE = 6 | _SUBSYSTEM, 8 | _SUBSYSTEM
_NEW_SET = 9 | _SUBSYSTEM
_NEW_ELEMENTS, _GET_ELEMENTS, _DELETE_ELEMENTS = 12 | _SUBSYSTEM, 13 | _SUBSYSTEM, 14 | _SUBSYSTEM
_NEW_GENERATION = 15 | _SUBSYSTEM

_HEADER = struct.pack("!BBH", 1, 0, 0)  # family inet
_TABLE = 1
_LIST_ELEMENT = 1

_ELEMENTS_SET, _ELEMENTS_LIST, _ELEMENTS_SET_ID = 2, 3, 4
_ELEMENT_KEY, _ELEMENT_DATA, _ELEMENT_FLAGS = 1, 2, 3
_DATA_VALUE, _DATA_VERDICT = 1, 2
_VERDICT_CODE, _VERDICT_CHAIN = 1, 2
_INTERVAL_END = 1

_CHAIN_NAME = 3
_RULE_CHAIN, _RULE_EXPRESSIONS = 2, 4
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2

_SET_NAME, _SET_FLAGS, _SET_KEY_TYPE, _SET_KEY_LENGTH, _SET_ID = 2, 3, 4, 5, 10
_ANONYMOUS_CONSTANT_INTERVAL = 1 | 2 | 4
_TYPE_IPV4 = 7

_REGISTER_VERDICT, _REGISTER_1 = 0, 1
_CT_REGISTER, _CT_KEY, _CT_DIRECTION = 1, 2, 3
_CT_DESTINATION_IP = 20
_LOOKUP_SET, _LOOKUP_SOURCE, _LOOKUP_SET_ID = 1, 2, 4
_IMMEDIATE_REGISTER, _IMMEDIATE_DATA = 1, 2

_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_LISTENER_BUFFER = 8 << 20
"""Bytes of announcements of others that may wait while the event loop is busy."""

_PER_MESSAGE = 1000
"""Elements in one message: a list attribute cannot be longer than 64 KB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a packet. `chain` is needed by jump and goto."""

    code: int
    chain: str = ""

    def encode(self, kind: int) -> bytes:
        chain = (text(_VERDICT_CHAIN, self.chain),) if self.chain else ()
        return nested(kind, nested(_DATA_VERDICT, be32(_VERDICT_CODE, self.code), *chain))


ACCEPT = Verdict(1)


def goto(chain: str) -> Verdict:
    """Go on in another chain and do not come back."""
    return Verdict(-4, chain)


def interface_key(name: str) -> bytes:
    """An interface name as the key of a set: 16 bytes."""
    return name.encode().ljust(16, b"\0")


@dataclass(frozen=True, slots=True)
class Table:
    """Makes messages about one table of family inet. Changes only work inside a transaction."""

    name: str

    def add_element(self, into: str, key: bytes, verdict: Verdict | None = None) -> Request:
        """A set takes an element that it has already; a map does not."""
        data = (verdict.encode(_ELEMENT_DATA),) if verdict else ()
        body = self._elements(into, [_element(key, *data)])
        return Request(f"adding to {into}", _NEW_ELEMENTS, body, codec.CREATE)

    def delete_element(self, out_of: str, key: bytes) -> Request:
        """Fails with ENOENT when there is no such element."""
        return Request(f"removing from {out_of}", _DELETE_ELEMENTS, self._elements(out_of, [_element(key)]))

    def find_element(self, of: str, key: bytes) -> Request:
        """To be asked for with `get`, outside of a transaction; ENOENT when there is no such element."""
        return Request(f"looking into {of}", _GET_ELEMENTS, self._elements(of, [_element(key)]))

    def add_chain(self, chain: str) -> Request:
        """A chain without rules; one that is there already keeps its own."""
        body = _HEADER + text(_TABLE, self.name) + text(_CHAIN_NAME, chain)
        return Request(f"adding chain {chain}", _NEW_CHAIN, body, codec.CREATE)

    def flush_chain(self, chain: str) -> Request:
        body = _HEADER + text(_TABLE, self.name) + text(_RULE_CHAIN, chain)
        return Request(f"emptying chain {chain}", _DELETE_RULE, body)

    def delete_chain(self, chain: str) -> Request:
        """The chain must be empty, and no map may lead to it any more."""
        body = _HEADER + text(_TABLE, self.name) + text(_CHAIN_NAME, chain)
        return Request(f"deleting chain {chain}", _DELETE_CHAIN, body)

    def match_destination(
        self, chain: str, ranges: Sequence[Range], verdict: Verdict, set_id: int
    ) -> Iterator[Request]:
        """A rule: `ct original ip daddr { ranges } verdict`. `set_id` differs for each in a transaction."""
        name = "__set%d"
        made = (
            _HEADER
            + text(_TABLE, self.name)
            + text(_SET_NAME, name)
            + be32(_SET_FLAGS, _ANONYMOUS_CONSTANT_INTERVAL)
            + be32(_SET_KEY_TYPE, _TYPE_IPV4)
            + be32(_SET_KEY_LENGTH, 4)
            + be32(_SET_ID, set_id)
        )
        yield Request("adding a list of addresses", _NEW_SET, made, codec.CREATE)
        bounds = list(_bounds(ranges))
        for start in range(0, len(bounds), _PER_MESSAGE):
            body = self._elements(name, bounds[start : start + _PER_MESSAGE], set_id)
            yield Request("adding addresses to a list", _NEW_ELEMENTS, body, codec.CREATE)
        destination = _expression(
            "ct",
            be32(_CT_REGISTER, _REGISTER_1),
            be32(_CT_KEY, _CT_DESTINATION_IP),
            u8(_CT_DIRECTION, 0),
        )
        lookup = _expression(
            "lookup",
            text(_LOOKUP_SET, name),
            be32(_LOOKUP_SOURCE, _REGISTER_1),
            be32(_LOOKUP_SET_ID, set_id),
        )
        yield self._rule(chain, destination, lookup, _immediate(verdict))

    def always(self, chain: str, verdict: Verdict) -> Request:
        """A rule for every packet that comes so far."""
        return self._rule(chain, _immediate(verdict))

    def _rule(self, chain: str, *expressions: bytes) -> Request:
        body = (
            _HEADER
            + text(_TABLE, self.name)
            + text(_RULE_CHAIN, chain)
            + nested(_RULE_EXPRESSIONS, *expressions)
        )
        return Request(f"adding a rule to {chain}", _NEW_RULE, body, codec.CREATE | codec.APPEND)

    def _elements(self, name: str, elements: Iterable[bytes], set_id: int | None = None) -> bytes:
        reference = be32(_ELEMENTS_SET_ID, set_id) if set_id is not None else b""
        return (
            _HEADER
            + text(_TABLE, self.name)
            + text(_ELEMENTS_SET, name)
            + reference
            + nested(_ELEMENTS_LIST, *elements)
        )


def changed_table(announcement: Message) -> str:
    """The inet table that an announced change is about; "" for other announcements."""
    if announcement.type & 0xFF00 != _SUBSYSTEM or announcement.body[:1] != _HEADER[:1]:
        return ""
    name = codec.parse_attributes(announcement.body[len(_HEADER) :]).get(_TABLE, b"")
    return name.rstrip(b"\0").decode(errors="replace")


def ends_transaction(announcement: Message) -> bool:
    """Whether the announcements of one transaction end here (NFT_MSG_NEWGEN)."""
    return announcement.type == _NEW_GENERATION


def subscribe(but_not_of: int) -> socket.socket:
    """A socket, not blocking, that receives the kernel's announcements of packet filter changes.

    Those of changes made through the netlink address `but_not_of` are dropped in the kernel.
    """
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _LISTENER_BUFFER)
        _drop_announcements_of(listener, but_not_of)
        listener.bind((0, 1 << (NFT_GROUP - 1)))
    except BaseException:
        listener.close()
        raise
    return listener


def _drop_announcements_of(listener: socket.socket, port: int) -> None:
    """Attach a classic BPF program: accept unless the header's fourth word is `port`."""
    # BPF reads words in network byte order, the header is in that of the host.
    wanted = int.from_bytes(port.to_bytes(4, sys.byteorder), "big")
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 12),  # load the word at 12
            (0x15, 0, 1, wanted),  # if it is not this, skip one
            (0x06, 0, 0, 0),  # take nothing
            (0x06, 0, 0, 0xFFFFFFFF),  # take all
        )
    )
    instructions = ctypes.create_string_buffer(program)
    listener.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("HP", len(program) // 8, ctypes.addressof(instructions)),
    )


def _element(key: bytes, *more: bytes) -> bytes:
    return nested(_LIST_ELEMENT, nested(_ELEMENT_KEY, attribute(_DATA_VALUE, key)), *more)


def _bounds(ranges: Sequence[Range]) -> Iterator[bytes]:
    """An interval set holds where a range begins and where the next address is outside again."""
    if ranges and ranges[0][0] > 0:
        yield _END_BEFORE + bytes(4) + _END_AFTER
    for first, last in ranges:
        yield _BEGIN_BEFORE + first.to_bytes(4, "big")
        if last < 0xFFFFFFFF:
            yield _END_BEFORE + (last + 1).to_bytes(4, "big") + _END_AFTER


def _around_address(element: bytes) -> tuple[bytes, bytes]:
    before, _address, after = element.partition(_PLACE)
    return before, after


# Lists can have thousands of addresses; all their elements look the same but for these four bytes.
_PLACE = b"\xaa\xbb\xcc\xdd"
_BEGIN_BEFORE, _ = _around_address(_element(_PLACE))
_END_BEFORE, _END_AFTER = _around_address(_element(_PLACE, be32(_ELEMENT_FLAGS, _INTERVAL_END)))


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(_LIST_ELEMENT, text(_EXPRESSION_NAME, name), nested(_EXPRESSION_DATA, *attributes))


def _immediate(verdict: Verdict) -> bytes:
    return _expression(
        "immediate", be32(_IMMEDIATE_REGISTER, _REGISTER_VERDICT), verdict.encode(_IMMEDIATE_DATA)
    )
