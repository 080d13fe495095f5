"""From the API's network fields to an egress policy. What is not supported is refused, never ignored."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError

from forkyard.base.errors import InvalidInput, NotSupported
from forkyard.sandboxes.driver import EgressPolicy
from forkyard.sandboxes.models import Sandbox

MAX_RULES = 1000


def parse_networks(values: Sequence[str] | None, field: str) -> tuple[IPv4Network, ...]:
    """IPv4 addresses and CIDR ranges. Raises InvalidInput naming the field, NotSupported for domains and IPv6."""
    if values is not None and len(values) > MAX_RULES:
        raise InvalidInput(f"{field}: at most {MAX_RULES} entries", field)
    return tuple(_parse_network(value, f"{field}[{index}]") for index, value in enumerate(values or ()))


def _parse_network(value: str, field: str) -> IPv4Network:
    text = value.strip()
    if ":" in text:
        raise NotSupported(f"{field}: IPv6 rules are not supported; all IPv6 traffic is dropped", field)
    try:
        return IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        if any(c.isalpha() for c in text):
            raise NotSupported(
                f"{field}: rules by domain name are not supported ({value!r}); give an address or a CIDR range",
                field,
            ) from None
        raise InvalidInput(f"{field}: {value!r} is neither an IPv4 address nor a CIDR range", field) from None


def egress_policy(
    *, allow_out: Sequence[str] | None, deny_out: Sequence[str] | None, allow_internet: bool | None
) -> EgressPolicy:
    return EgressPolicy(
        allow=parse_networks(allow_out, "network.allowOut"),
        deny=parse_networks(deny_out, "network.denyOut"),
        allow_internet=allow_internet is not False,
    )


def policy_of(sandbox: Sandbox) -> EgressPolicy:
    """The policy that a sandbox's record holds."""
    return egress_policy(
        allow_out=sandbox.allow_out, deny_out=sandbox.deny_out, allow_internet=sandbox.allow_internet
    )
