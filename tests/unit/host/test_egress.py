"""Policies and ranges, without a kernel."""

import itertools
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.base.errors import InvalidInput
from forkyard.host.egress import ALWAYS_DENIED, MAX_RANGES, EgressPolicy, subtract, to_ranges


def net(text: str) -> IPv4Network:
    return IPv4Network(text)


networks = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)
addresses = st.integers(0, 2**32 - 1).map(IPv4Address)


@pytest.mark.parametrize(
    ("policy", "plain"),
    [
        (EgressPolicy(), True),
        (EgressPolicy(allow_internet=False), False),
        (EgressPolicy(deny=(net("0.0.0.0/0"),)), False),
        (EgressPolicy(allow=(net("8.8.8.8/32"),)), True),
        (EgressPolicy(allow=(net("0.0.0.0/0"),), deny=(net("1.1.1.1/32"),)), True),
        (EgressPolicy(allow=(net("8.8.8.8/32"),), deny=(net("0.0.0.0/0"),)), None),
        (EgressPolicy(allow=(net("8.8.8.8/32"),), allow_internet=False), None),
        (EgressPolicy(deny=(net("1.1.1.1/32"),)), None),
    ],
)
def test_plain_policies_need_no_lists(policy: EgressPolicy, plain: bool | None) -> None:
    assert policy.plain is plain


@given(st.lists(networks, max_size=4), st.lists(networks, max_size=4), st.booleans(), addresses)
def test_plain_says_the_same_as_the_lists(
    allow: list[IPv4Network], deny: list[IPv4Network], allow_internet: bool, address: IPv4Address
) -> None:
    policy = EgressPolicy(tuple(allow), tuple(deny), allow_internet)
    if policy.plain is not None:
        assert policy.permits(address) is policy.plain


def test_allow_beats_deny_beats_default() -> None:
    policy = EgressPolicy((net("8.8.8.8/32"),), (net("8.8.0.0/16"),))
    assert policy.permits(IPv4Address("8.8.8.8"))
    assert not policy.permits(IPv4Address("8.8.4.4"))
    assert policy.permits(IPv4Address("9.9.9.9"))


def test_too_many_entries_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput) as caught:
        EgressPolicy(deny=(net("1.1.1.1/32"),) * (MAX_RANGES + 1))
    assert caught.value.field == "deny"


@given(st.lists(networks, max_size=8), addresses)
def test_ranges_cover_the_same_addresses_and_never_touch(
    given_networks: list[IPv4Network], address: IPv4Address
) -> None:
    ranges = to_ranges(given_networks)
    inside = any(address in network for network in given_networks)
    assert any(first <= int(address) <= last for first, last in ranges) is inside
    for (_, last), (first, _) in itertools.pairwise(ranges):
        assert last + 1 < first


@given(st.lists(networks, max_size=6), st.lists(networks, max_size=4), addresses)
def test_subtract_leaves_what_is_not_in_a_hole(
    given_networks: list[IPv4Network], holes: list[IPv4Network], address: IPv4Address
) -> None:
    left = subtract(given_networks, holes)
    expected = any(address in n for n in given_networks) and not any(address in h for h in holes)
    assert any(address in n for n in left) is expected


def test_lifting_one_internal_network_keeps_the_rest_denied() -> None:
    left = subtract(ALWAYS_DENIED, [net("10.1.2.0/24")])
    assert not any(IPv4Address("10.1.2.3") in n for n in left)
    assert any(IPv4Address("10.1.3.3") in n for n in left)
    assert any(IPv4Address("169.254.169.254") in n for n in left)
