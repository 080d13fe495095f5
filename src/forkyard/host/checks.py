"""What the host must have, each with what was found, why it matters and what to do; for `serve` and `doctor` alike.

Every check tries the real thing where that is possible and leaves nothing behind.
"""

import asyncio
import errno
import json
import os
import platform
import re
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

from forkyard.base.errors import ForkyardError
from forkyard.base.subprocess import CommandFailed, run_command
from forkyard.host import namespaces
from forkyard.host.addresses import DEFAULT_POOL
from forkyard.host.cgroups import hierarchies
from forkyard.host.errors import HostError, NetlinkError, RequirementMissing
from forkyard.host.memory import host_memory
from forkyard.host.netlink import links
from forkyard.host.netlink.connection import ROUTE, NetlinkConnection
from forkyard.host.netlink.links import VethEnd
from forkyard.host.ports import port_holder
from forkyard.host.ruleset import FirewallConfig, render
from forkyard.host.settings import SETTINGS

OLDEST_KERNEL: tuple[int, ...] = (5, 10)

_TIMEOUT = 20.0
_CAPABILITIES = {"CAP_KILL": 5, "CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_MACHINES = ("x86_64", "aarch64")
_SBIN = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}


class Status(StrEnum):
    OK = "ok"
    HINT = "hint"
    """Works, and would work better."""
    WARNING = "warning"
    """Works, but something will not."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One requirement. `why` and `fix` are "" when all is well."""

    name: str
    status: Status
    found: str
    why: str = ""
    fix: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one line, for logs and errors."""
        return ": ".join([self.name, "; ".join(part for part in (self.found, self.why, self.fix) if part)])


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """What to check against."""

    slot_range: IPv4Network = DEFAULT_POOL
    listen: tuple[tuple[str, int, str], ...] = ()
    """Addresses and ports that a server is to listen on, each with the option that chooses the port; without those
    that its edge has already."""
    min_memory: int = 1 << 30


async def check_host(config: CheckConfig | None = None) -> list[CheckResult]:
    """All checks, in a fixed order. One that breaks down itself is reported as failed."""
    wanted = config or CheckConfig()
    return [await _guarded(name, check, wanted) for name, check in _CHECKS.items()]


def require(results: list[CheckResult]) -> None:
    """Raises RequirementMissing with a line for each check that failed."""
    failed = [result.sentence for result in results if result.status is Status.FAILED]
    if failed:
        raise RequirementMissing("\n".join(failed))


async def _guarded(name: str, check: "_Check", config: CheckConfig) -> CheckResult:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await check(name, config)
    except (ForkyardError, OSError, ValueError, TimeoutError) as error:
        return CheckResult(name, Status.FAILED, f"the check failed ({str(error) or type(error).__name__})")


async def _rights(name: str, _config: CheckConfig) -> CheckResult:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", _read("/proc/self/status"), re.MULTILINE)
    effective = int(match[1], 16) if match else 0
    missing = [capability for capability, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if os.geteuid() == 0 and not missing:
        return CheckResult(name, Status.OK, "root with all capabilities that are needed")
    return CheckResult(
        name,
        Status.FAILED,
        f"user {os.geteuid()}" + (f" without {', '.join(missing)}" if missing else ""),
        "making networks and control groups for sandboxes is allowed to root only",
        "run it with sudo, or the container with --privileged",
    )


async def _kernel(name: str, _config: CheckConfig) -> CheckResult:
    release, machine = platform.release(), platform.machine()
    version = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if version >= OLDEST_KERNEL and machine in _MACHINES:
        return CheckResult(name, Status.OK, f"Linux {release} on {machine}")
    return CheckResult(
        name,
        Status.FAILED,
        f"Linux {release} on {machine}",
        "older kernels lack packet filter and process features, other machines a runtime",
        f"use Linux {_version(OLDEST_KERNEL)} or later on {' or '.join(_MACHINES)} (Debian 12, Ubuntu 24.04)",
    )


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


async def _packet_filter(name: str, config: CheckConfig) -> CheckResult:
    """The very table of an instance is tried and thrown away by the kernel."""
    why = "sandboxes are kept apart from each other and from the host by nftables"
    rules = render("doctor", FirewallConfig(slot_range=config.slot_range), [])
    try:
        result = await run_command(
            ["nft", "--check", "-f", "-"], stdin=rules.encode(), timeout=_TIMEOUT, env=_SBIN
        )
        result.check()
    except CommandFailed as error:
        if error.result is None:
            return CheckResult(name, Status.FAILED, "there is no nft", why, "run `apt-get install nftables`")
        modules = "nf_tables nft_ct nft_nat nft_masq nft_reject_inet nft_fib_inet nft_connlimit"
        fix = f"load the modules with `modprobe -a {modules}`"
        return CheckResult(name, Status.FAILED, error.message, why, fix)
    return CheckResult(name, Status.OK, "nftables takes the rules of an instance")


async def _networks(name: str, _config: CheckConfig) -> CheckResult:
    """A namespace with a cable in it, made and removed."""
    trial = f"fydoctor-{secrets.token_hex(3)}"

    def lay_cable() -> None:
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            near, far = VethEnd("eth0", b"\x02\0\0\0\0\1"), VethEnd("eth1", b"\x02\0\0\0\0\2")
            with NetlinkConnection(ROUTE) as connection:
                connection.change([links.create_veth(near, far, own, 1500)])
        finally:
            os.close(own)

    def attempt() -> None:
        namespaces.prepare_directory()
        try:
            namespaces.create(trial, lay_cable)
        finally:
            namespaces.remove(trial)

    try:
        await asyncio.to_thread(attempt)
    except (HostError, OSError) as error:
        return CheckResult(
            name,
            Status.FAILED,
            str(error),
            "every sandbox has a network of its own",
            "run `modprobe veth`, and allow network namespaces (`sysctl user.max_net_namespaces`)",
        )
    return CheckResult(name, Status.OK, "network namespaces and virtual cables can be made")


async def _control_groups(name: str, _config: CheckConfig) -> CheckResult:
    why = "limits of CPU, memory and processes are kept by control groups"
    try:
        found = hierarchies()
    except RequirementMissing as error:
        return CheckResult(name, Status.FAILED, error.message, why, "mount them, see above")
    if found.version == 1:
        have = set(found.by_controller)
    else:
        have = set(_read(found.roots[0] / "cgroup.controllers").split())
    missing = sorted({"cpu", "memory", "pids"} - have)
    if missing:
        fix = "boot with `cgroup_enable=memory swapaccount=1`, or give the container its own control group namespace"
        return CheckResult(
            name, Status.FAILED, f"version {found.version} without {', '.join(missing)}", why, fix
        )
    return CheckResult(name, Status.OK, f"version {found.version}")


async def _forwarding(name: str, _config: CheckConfig) -> CheckResult:
    if _read("/proc/sys/net/ipv4/ip_forward").strip() == "1":
        return CheckResult(name, Status.OK, "IP forwarding is on")
    if os.access("/proc/sys/net/ipv4/ip_forward", os.W_OK):
        return CheckResult(name, Status.OK, "IP forwarding is off; the server switches it on")
    return CheckResult(
        name,
        Status.FAILED,
        "IP forwarding is off and cannot be switched on from here",
        "without it no sandbox reaches the internet",
        "run `sysctl -w net.ipv4.ip_forward=1` on the host",
    )


async def _other_firewalls(name: str, _config: CheckConfig) -> CheckResult:
    """Docker and others drop what is forwarded unless told otherwise, and a drop beats our accept."""
    result = await run_command(
        ["nft", "-j", "list", "chains"], timeout=_TIMEOUT, env=_SBIN, max_output=16 << 20
    )
    dropping: list[str] = []
    for chain in _chains(result.check().stdout):
        ours = str(chain.get("table")).startswith("forkyard_")
        if chain.get("hook") == "forward" and chain.get("policy") == "drop" and not ours:
            dropping.append(f"{chain['family']} {chain['table']}")
    blocked = [table for table in dropping if not await _lets_slots_pass(table)]
    if not blocked:
        return CheckResult(name, Status.OK, "no other packet filter keeps sandboxes from the internet")
    return CheckResult(
        name,
        Status.WARNING,
        f"the packet filter table {', '.join(blocked)} drops forwarded packets",
        "sandboxes do not reach the internet (Docker sets this up)",
        "run `iptables -I FORWARD -i 'fy+' -j ACCEPT` and "
        "`iptables -I FORWARD -o 'fy+' -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT` "
        "(with Docker: DOCKER-USER in place of FORWARD)",
    )


def _chains(listed: bytes) -> list[dict[str, Any]]:
    parsed = cast(dict[str, list[dict[str, dict[str, Any]]]], json.loads(listed))
    return [entry["chain"] for entry in parsed["nftables"] if "chain" in entry]


async def _lets_slots_pass(table: str) -> bool:
    result = await run_command(
        ["nft", "list", "table", *table.split()], timeout=_TIMEOUT, env=_SBIN, max_output=16 << 20
    )
    return re.search(rb'[io]ifname "fy', result.stdout) is not None


async def _slot_range(name: str, config: CheckConfig) -> CheckResult:
    """A wider route over the range is legal (the slots are more exact), but hides what it led to."""
    with NetlinkConnection(ROUTE) as connection:
        try:
            match = links.parse_route(connection.get(links.find_route(config.slot_range[-2])))
        except NetlinkError:
            return CheckResult(name, Status.OK, f"{config.slot_range}, routed nowhere")
    if match.prefix_length == 0 or match.prefix_length > config.slot_range.prefixlen:
        return CheckResult(name, Status.OK, str(config.slot_range))
    return CheckResult(
        name,
        Status.WARNING,
        f"{config.slot_range} lies in a network that this host reaches through {_interface(match.interface)}",
        "hosts of that network with such addresses cannot be reached while sandboxes use them",
        "give the server a range that your network does not use",
    )


def _interface(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return f"interface {index}"


async def _connection_table(name: str, _config: CheckConfig) -> CheckResult:
    most = int(_read("/proc/sys/net/netfilter/nf_conntrack_max") or 0)
    if most >= 65536 or most == 0:
        return CheckResult(name, Status.OK, f"{most} connections" if most else "not loaded yet")
    return CheckResult(
        name,
        Status.WARNING,
        f"the host tracks at most {most} connections",
        "when the table is full, new connections of all sandboxes and of the host fail",
        "run `sysctl -w net.netfilter.nf_conntrack_max=262144`",
    )


async def _process_limits(name: str, _config: CheckConfig) -> CheckResult:
    pids = int(_read("/proc/sys/kernel/pid_max"))
    _soft, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 1 << 30
    found = f"{pids} processes and threads, {files} open files"
    if pids >= 131072 and files >= 16384:
        return CheckResult(name, Status.OK, found)
    return CheckResult(
        name,
        Status.WARNING,
        found,
        "each sandbox takes dozens of threads of the host, and the server a few open files for each",
        "run `sysctl -w kernel.pid_max=4194304`, and set LimitNOFILE=65536 for the service",
    )


async def _inotify(name: str, _config: CheckConfig) -> CheckResult:
    base = "/proc/sys/fs/inotify/"
    instances, watches = int(_read(base + "max_user_instances")), int(_read(base + "max_user_watches"))
    found = f"{instances} instances, {watches} watches"
    if instances >= 128 and watches >= 65536:
        return CheckResult(name, Status.OK, found)
    return CheckResult(
        name,
        Status.WARNING,
        found,
        "watching mounted volumes takes one instance and a watch a directory",
        "run `sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=1048576`",
    )


async def _memory(name: str, config: CheckConfig) -> CheckResult:
    found = await asyncio.to_thread(host_memory)
    text = f"{found.available >> 20} of {found.total >> 20} MB available"
    if found.available >= config.min_memory:
        return CheckResult(name, Status.OK, text)
    return CheckResult(
        name,
        Status.WARNING,
        text,
        "an idle sandbox takes 14 to 28 MB, a working one what its program needs",
        "stop something else, or use a larger machine",
    )


async def _virtualisation(name: str, _config: CheckConfig) -> CheckResult:
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        return CheckResult(name, Status.OK, "/dev/kvm is there: microVM drivers can be used")
    return CheckResult(name, Status.OK, "no /dev/kvm: only the gVisor driver can be used")


async def _port(name: str, config: CheckConfig) -> CheckResult:
    if not config.listen:
        return CheckResult(name, Status.OK, "held by this instance's edge")
    for host, port, option in config.listen:
        error = _cannot_bind(host, port)
        if error is not None:
            problem, number = error.strerror or str(error), error.errno
            holder = await asyncio.to_thread(port_holder, port)
            return CheckResult(
                name,
                Status.FAILED,
                f"port {port} on {host} cannot be used ({problem}){f'; {holder} has it' if holder else ''}",
                "the API and all sandboxes are reached through it",
                (
                    "give --host an address of this machine; 0.0.0.0 is all of them"
                    if number == errno.EADDRNOTAVAIL
                    else f"stop the program that has it, or choose another port with {option}"
                ),
            )
    free = " and ".join(f"port {port} on {host}" for host, port, _ in config.listen)
    return CheckResult(name, Status.OK, f"{free} {'is' if len(config.listen) == 1 else 'are'} free")


def _cannot_bind(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


async def _helpful_settings(name: str, _config: CheckConfig) -> CheckResult:
    unset = [setting for setting in SETTINGS if setting.is_available() and not setting.is_set()]
    if not unset:
        return CheckResult(name, Status.OK, "all that help are set")
    return CheckResult(
        name,
        Status.HINT,
        ", ".join(f"{setting.path} is {setting.value()}" for setting in unset),
        "; ".join(setting.why for setting in unset),
        "run `forkyard doctor --fix` (`--undo` takes it back)",
    )


def _read(path: str | Path) -> str:
    """ "" for a file that is not there."""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""


_Check = Callable[[str, CheckConfig], Awaitable[CheckResult]]

_CHECKS: dict[str, _Check] = {
    "rights": _rights,
    "kernel": _kernel,
    "packet filter": _packet_filter,
    "networks": _networks,
    "control groups": _control_groups,
    "forwarding": _forwarding,
    "other packet filters": _other_firewalls,
    "slot range": _slot_range,
    "connection table": _connection_table,
    "process limits": _process_limits,
    "inotify": _inotify,
    "memory": _memory,
    "virtualisation": _virtualisation,
    "port": _port,
    "host settings": _helpful_settings,
}
