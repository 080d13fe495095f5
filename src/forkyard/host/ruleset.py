"""The packet filter of an instance as nftables text. Pure; `firewall.py` applies it.

What a packet from a slot passes: `before_tracking` (cut? forged? IPv6?) - `classify` (answers to the host go on to
`to_host`; everything else must be a new or established connection to an address elsewhere) - `routed` (internal
ranges, then the slot's policy) - `translate`. What a packet to a slot passes: `routed` (only answers, and only from
where the slot's policy allows) - `last`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

from forkyard.host.addresses import DEFAULT_POOL, Slot
from forkyard.host.egress import ALWAYS_DENIED, EgressPolicy, Range, subtract, to_ranges

SOURCES, CUT, EGRESS, CONNECTIONS, REFUSE = "sources", "cut", "egress", "connections", "refuse"


@dataclass(frozen=True, slots=True)
class FirewallConfig:
    """What an operator can set."""

    slot_range: IPv4Network = DEFAULT_POOL
    extra_allowed_internal: tuple[IPv4Network, ...] = ()
    """Internal networks that sandboxes may reach as if they were the internet (policies still apply)."""
    extra_denied: tuple[IPv4Network, ...] = ()
    """Networks denied like the internal ones, whatever a policy says."""
    max_connections: int = 4096
    """Connections to elsewhere that one slot may have at a time; the host's table is shared by all."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A slot in use, what it may reach, and whether its network is cut."""

    slot: Slot
    policy: EgressPolicy
    cut: bool = False


def table_name(instance: str) -> str:
    return f"forkyard_{instance}"


def chain_name(slot: Slot) -> str:
    """The chain of a slot whose policy has lists."""
    return f"slot_{slot.number}"


def internal_ranges(config: FirewallConfig) -> list[Range]:
    """What no policy can lift. Other slots stay in it even if an operator lifts the range they are in."""
    denied = subtract([*ALWAYS_DENIED, *config.extra_denied], config.extra_allowed_internal)
    return to_ranges([*denied, config.slot_range])


def render(instance: str, config: FirewallConfig, bindings: Iterable[Binding]) -> str:
    """The whole table, in one transaction instead of the one that may be there."""
    name = table_name(instance)
    body = _TABLE.format(
        ours=f'"fy{instance}-*"',
        any='"fy*"',
        internal=_ranges(internal_ranges(config)),
        max_connections=config.max_connections,
        **_elements(list(bindings)),
    )
    # A table that is not there cannot be deleted, so it is added first.
    return f"add table inet {name}\ndelete table inet {name}\ntable inet {name} {{\n{body}}}\n"


def render_teardown(instance: str) -> str:
    name = table_name(instance)
    return f"add table inet {name}\ndelete table inet {name}\n"


def _elements(bindings: list[Binding]) -> dict[str, str]:
    return {
        "sources": _list(f'"{b.slot.interface}" . {b.slot.address}' for b in bindings),
        "cut": _list(f'"{b.slot.interface}"' for b in bindings if b.cut),
        "egress": _list(f'"{b.slot.interface}" : {_verdict(b)}' for b in bindings),
        "chains": "".join(_chain(b) for b in bindings if b.policy.plain is None),
    }


def _verdict(binding: Binding) -> str:
    match binding.policy.plain:
        case True:
            return "accept"
        case False:
            return f"goto {REFUSE}"
        case None:
            return f"goto {chain_name(binding.slot)}"


def _chain(binding: Binding) -> str:
    return "".join(
        [f"\tchain {chain_name(binding.slot)} {{\n", *_policy_rules(binding.policy), "\t}\n"],
    )


def _policy_rules(policy: EgressPolicy) -> Iterator[str]:
    """The same as `Firewall` makes of messages. `ct original` holds for answers too: they come from where the
    connection went to."""
    if policy.allow:
        yield f"\t\tct original ip daddr {{ {_ranges(to_ranges(policy.allow))} }} accept\n"
    if policy.allow_internet and policy.deny:
        yield f"\t\tct original ip daddr {{ {_ranges(to_ranges(policy.deny))} }} goto {REFUSE}\n"
    yield "\t\taccept\n" if policy.allow_internet else f"\t\tgoto {REFUSE}\n"


def _ranges(ranges: Iterable[Range]) -> str:
    return ", ".join(
        _dotted(first) if first == last else f"{_dotted(first)}-{_dotted(last)}" for first, last in ranges
    )


def _dotted(number: int) -> str:
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


def _list(elements: Iterable[str]) -> str:
    joined = ", ".join(elements)
    return f"elements = {{ {joined} }}" if joined else ""


_TABLE = """\
	set sources {{
		type ifname . ipv4_addr
		{sources}
	}}
	set cut {{
		type ifname
		{cut}
	}}
	set internal {{
		type ipv4_addr
		flags interval
		elements = {{ {internal} }}
	}}
	set connections {{
		type ipv4_addr
		size 1000000
		flags dynamic
	}}
	chain refuse {{
		oifname {ours} drop
		meta l4proto tcp reject with tcp reset
		reject with icmp type admin-prohibited
	}}
{chains}
	map egress {{
		type ifname : verdict
		{egress}
	}}

	chain before_tracking {{
		type filter hook prerouting priority raw; policy accept;
		iifname {ours} goto from_slot
	}}
	chain from_slot {{
		iifname @cut drop
		meta nfproto != ipv4 drop
		iifname . ip saddr != @sources drop
	}}

	chain classify {{
		type filter hook prerouting priority mangle; policy accept;
		iifname {ours} goto leaving
	}}
	chain leaving {{
		ct state established ct direction reply fib daddr type local accept
		ct direction reply drop
		ct state != {{ new, established }} drop
		fib daddr type != unicast drop
		ct state new add @connections {{ ip saddr ct count over {max_connections} }} drop
	}}

	chain to_host {{
		type filter hook input priority filter; policy accept;
		iifname {ours} goto answers
	}}
	chain answers {{
		ct state established ct direction reply accept
		drop
	}}

	chain routed {{
		type filter hook forward priority filter; policy accept;
		iifname {ours} goto outbound
		oifname {ours} goto inbound
	}}
	chain outbound {{
		oifname {any} drop
		ct original ip daddr @internal goto refuse
		ip daddr @internal goto refuse
		iifname vmap @egress
		drop
	}}
	chain inbound {{
		ct state {{ established, related }} ct direction reply oifname vmap @egress
		drop
	}}

	chain translate {{
		type nat hook postrouting priority srcnat; policy accept;
		iifname {ours} masquerade
	}}

	chain last {{
		type filter hook postrouting priority 300; policy accept;
		oifname {ours} goto to_slot
	}}
	chain to_slot {{
		oifname @cut drop
		meta nfproto != ipv4 drop
	}}
"""
