"""Which addresses, names and MACs a slot has: all derived from its number. Pure; touches nothing."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from forkyard.base.errors import InvalidInput

PREFIX_LENGTH = 30
DEFAULT_POOL = IPv4Network("10.200.0.0/16")

_INSTANCE = re.compile(r"[a-z0-9]{6}")
_MOST_SLOTS = 1_000_000
"""Seven digits would make the interface name longer than the kernel's 15 characters."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One network slot: a namespace, a veth pair and a /30, ready for one machine at a time."""

    instance: str
    number: int
    subnet: IPv4Network

    @property
    def namespace(self) -> str:
        return f"fy-{self.instance}-{self.number}"

    @property
    def netns_path(self) -> str:
        return f"/run/netns/{self.namespace}"

    @property
    def interface(self) -> str:
        """The host's end of the cable; the guest's is `eth0` in the namespace."""
        return f"fy{self.instance}-{self.number}"

    @property
    def gateway(self) -> IPv4Address:
        """The host's address on the cable."""
        return self.subnet.network_address + 1

    @property
    def address(self) -> IPv4Address:
        """The guest's address."""
        return self.subnet.network_address + 2

    @property
    def address_with_prefix(self) -> str:
        """As the keeper wants it: `10.200.0.2/30`."""
        return f"{self.address}/{PREFIX_LENGTH}"

    @property
    def host_mac(self) -> bytes:
        return b"\x02\x66" + self.gateway.packed

    @property
    def guest_mac(self) -> bytes:
        """Locally administered, and unique on the host as the address is."""
        return b"\x02\x66" + self.address.packed


@dataclass(frozen=True, slots=True)
class AddressPool:
    """An address range cut into /30s, one for each slot number of an instance."""

    instance: str
    range: IPv4Network = DEFAULT_POOL

    def __post_init__(self) -> None:
        if not _INSTANCE.fullmatch(self.instance):
            raise InvalidInput(
                f"{self.instance!r} is no instance id: six characters of a-z and 0-9 are needed"
            )
        if not 8 <= self.range.prefixlen <= PREFIX_LENGTH:
            raise InvalidInput(f"the slot range {self.range} must have a prefix length of 8 to 30", "range")

    @property
    def size(self) -> int:
        return min(1 << (PREFIX_LENGTH - self.range.prefixlen), _MOST_SLOTS)

    def slot(self, number: int) -> Slot:
        """Raises InvalidInput for a number outside of the range."""
        if not 0 <= number < self.size:
            raise InvalidInput(f"slot {number} is outside of {self.range}", "number")
        first = self.range.network_address + number * 4
        return Slot(self.instance, number, IPv4Network((first, PREFIX_LENGTH)))

    def number_in(self, name: str) -> int | None:
        """The slot number in one of this instance's namespace or interface names; None for any other name."""
        for prefix in (f"fy-{self.instance}-", f"fy{self.instance}-"):
            digits = name.removeprefix(prefix)
            if digits != name and digits.isascii() and digits.isdigit() and len(digits) < 8:
                return int(digits)
        return None
