"""What a slot may reach: the policy, and its ranges in the form the kernel's sets take."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from forkyard.base.errors import InvalidInput

EVERYTHING = IPv4Network("0.0.0.0/0")

MAX_RANGES = 4096
"""Entries of one list of a policy. Each costs kernel memory; replacing a policy of this size takes about 20 ms."""

ALWAYS_DENIED = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
"""Internal ranges that no policy can lift; an operator can, with `FirewallConfig.extra_allowed_internal`."""

Range = tuple[int, int]
"""First and last address as numbers, both included."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Which destinations a slot may reach. `allow` beats `deny`, `deny` beats the default.

    With `allow_internet=False` only what `allow` lists is reached. Internal ranges and the host itself stay
    out of reach whatever is written here. Raises InvalidInput for lists of more than MAX_RANGES entries.
    """

    allow: tuple[IPv4Network, ...] = ()
    deny: tuple[IPv4Network, ...] = ()
    allow_internet: bool = True

    def __post_init__(self) -> None:
        for field, networks in (("allow", self.allow), ("deny", self.deny)):
            if len(networks) > MAX_RANGES:
                raise InvalidInput(
                    f"{field} has {len(networks)} entries; at most {MAX_RANGES} are possible", field
                )

    @property
    def plain(self) -> bool | None:
        """True when everything is allowed, False when nothing is, None when the lists have to be looked at."""
        if EVERYTHING in self.allow:
            return True
        if not self.allow and (not self.allow_internet or EVERYTHING in self.deny):
            return False
        if self.allow_internet and not self.deny:
            return True
        return None

    def permits(self, address: IPv4Address) -> bool:
        """Whether the policy alone lets `address` be reached (it says nothing about internal ranges)."""
        if any(address in network for network in self.allow):
            return True
        return self.allow_internet and not any(address in network for network in self.deny)


def to_ranges(networks: Iterable[IPv4Network]) -> list[Range]:
    """The same addresses as sorted ranges that neither overlap nor touch."""
    ranges: list[Range] = []
    for network in collapse_addresses(networks):
        first, last = int(network.network_address), int(network.broadcast_address)
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def subtract(networks: Iterable[IPv4Network], holes: Iterable[IPv4Network]) -> list[IPv4Network]:
    """`networks` without the addresses of `holes`."""
    left = list(collapse_addresses(networks))
    for hole in holes:
        kept: list[IPv4Network] = []
        for network in left:
            if not network.overlaps(hole):
                kept.append(network)
            elif network.prefixlen < hole.prefixlen:
                kept.extend(network.address_exclude(hole))
        left = kept
    return sorted(left)
