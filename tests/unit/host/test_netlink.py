"""Bytes of netlink, and the pure parts of slots and rules."""

import struct
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.base.errors import InvalidInput
from forkyard.host.addresses import AddressPool
from forkyard.host.egress import EgressPolicy
from forkyard.host.netlink import codec, links, tables
from forkyard.host.ruleset import Binding, FirewallConfig, internal_ranges, render


@given(st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=100), max_size=10))
def test_attributes_come_back_as_they_were(values: dict[int, bytes]) -> None:
    data = b"".join(codec.attribute(kind, value) for kind, value in values.items())
    assert len(data) % 4 == 0
    assert codec.parse_attributes(data) == values


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_but_never_looped_over(data: bytes) -> None:
    for parse in (codec.parse_attributes, lambda d: list(codec.parse_messages(d))):
        try:
            parse(data)
        except ValueError:
            continue


def test_messages_of_one_datagram_are_told_apart() -> None:
    first, second = codec.Request("a", 16, b"1234"), codec.Request("b", 17, b"")
    data = codec.frame(first, 7, codec.ACK) + codec.frame(second, 8)
    got = list(codec.parse_messages(data))
    assert [(m.type, m.sequence, m.body) for m in got] == [(16, 7, b"1234"), (17, 8, b"")]
    assert got[0].flags == codec.ACK | codec.REQUEST


def test_an_error_carries_the_kernels_own_sentence() -> None:
    capped, with_text = 0x100, 0x200
    said = codec.text(1, "Device does not exist")
    body = struct.pack("=i", -19) + bytes(16) + said
    assert codec.parse_error(codec.Message(2, capped | with_text, 1, 0, body)) == (
        19,
        "Device does not exist",
    )
    assert codec.parse_error(codec.Message(2, capped, 1, 0, struct.pack("=i", 0) + bytes(16))) == (0, "")


def test_only_changes_of_inet_tables_are_recognised() -> None:
    body = tables.Table("forkyard_abc123").flush_chain("x").body
    message = codec.Message(8 | 10 << 8, 0, 0, 5, body)
    assert tables.changed_table(message) == "forkyard_abc123"
    assert tables.changed_table(codec.Message(8 | 1 << 8, 0, 0, 5, body)) == ""
    assert tables.changed_table(codec.Message(8 | 10 << 8, 0, 0, 5, b"\2" + body[1:])) == ""


def test_the_end_of_a_transaction_is_recognised() -> None:
    assert tables.ends_transaction(codec.Message(15 | 10 << 8, 0, 0, 5, b""))
    assert not tables.ends_transaction(codec.Message(8 | 10 << 8, 0, 0, 5, b""))
    assert not tables.ends_transaction(codec.Message(15 | 1 << 8, 0, 0, 5, b""))


def test_long_lists_are_split_below_what_an_attribute_can_hold() -> None:
    ranges = [(n * 512, n * 512 + 255) for n in range(4096)]
    requests = list(tables.Table("t").match_destination("c", ranges, tables.ACCEPT, 1))
    assert max(len(request.body) for request in requests) < 1 << 16


def test_multicast_neighbours_mean_nothing() -> None:
    entry = struct.pack("=BxxxiHBB", 2, 1, 0x40, 0, 0) + codec.attribute(1, IPv4Address("224.0.0.1").packed)
    assert links.parse_neighbour(codec.Message(28, 0, 0, 0, entry)) is None


@given(st.integers(0, 16383))
def test_names_lead_back_to_their_slot(number: int) -> None:
    pool = AddressPool("abc123")
    slot = pool.slot(number)
    assert len(slot.interface) <= 15
    assert pool.number_in(slot.interface) == pool.number_in(slot.namespace) == number
    assert slot.address in slot.subnet
    assert slot.gateway in slot.subnet
    assert slot.guest_mac[0] & 3 == 2  # locally administered, not multicast
    assert slot.guest_mac != slot.host_mac


@pytest.mark.parametrize(
    "name", ["fy-abc124-1", "fyabc123-", "fyabc123-x", "fy-abc123-1x", "fyabc123-٣", "eth0", "fy-abc123--1"]
)
def test_foreign_names_are_nobodys(name: str) -> None:
    assert AddressPool("abc123").number_in(name) is None


def test_ranges_and_ids_that_cannot_work_are_refused() -> None:
    for instance in ("", "abc12", "abc1234", "ABC123", "abc12*", 'abc1"2'):
        with pytest.raises(InvalidInput):
            AddressPool(instance)
    with pytest.raises(InvalidInput):
        AddressPool("abc123", IPv4Network("10.0.0.0/31"))
    with pytest.raises(InvalidInput):
        AddressPool("abc123", IPv4Network("10.0.0.0/29")).slot(2)
    assert len(AddressPool("abc123", IPv4Network("10.0.0.0/8")).slot(999_999).interface) == 15


def test_slots_stay_apart_even_in_a_range_that_an_operator_lifts() -> None:
    config = FirewallConfig(extra_allowed_internal=(IPv4Network("10.0.0.0/8"),))
    ranges = internal_ranges(config)
    assert any(first <= int(IPv4Address("10.200.1.1")) <= last for first, last in ranges)
    assert not any(first <= int(IPv4Address("10.1.1.1")) <= last for first, last in ranges)
    assert any(first <= int(IPv4Address("169.254.169.254")) <= last for first, last in ranges)


def test_rules_name_each_slot_once_for_each_purpose() -> None:
    pool = AddressPool("abc123")
    text = render(
        "abc123",
        FirewallConfig(),
        [
            Binding(pool.slot(0), EgressPolicy()),
            Binding(pool.slot(1), EgressPolicy(allow_internet=False), cut=True),
            Binding(pool.slot(2), EgressPolicy(deny=(IPv4Network("1.2.3.4/32"),))),
        ],
    )
    assert '"fyabc123-0" : accept, "fyabc123-1" : goto refuse, "fyabc123-2" : goto slot_2' in text
    assert 'elements = { "fyabc123-1" }' in text
    assert "ct original ip daddr { 1.2.3.4 } goto refuse" in text
    assert text.startswith("add table inet forkyard_abc123\ndelete table inet forkyard_abc123\n")
