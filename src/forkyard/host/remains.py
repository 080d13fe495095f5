"""What instances have on this host, living or dead, and removing what the dead ones left (`doctor --clean`)."""

import asyncio
import fcntl
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.subprocess import run_command
from forkyard.host import namespaces
from forkyard.host.addresses import AddressPool
from forkyard.host.cgroups import hierarchies, remove_group
from forkyard.host.errors import HostError
from forkyard.host.instance import CLAIMS, SHARED, read_instance_id
from forkyard.host.reservations import DIRECTORY as RESERVATIONS
from forkyard.host.reservations import Reservations, all_reservations
from forkyard.host.ruleset import render_teardown
from forkyard.host.slots import Slots

_TIMEOUT = 30.0
_SBIN = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
_NAMES = (
    re.compile(r"fy-([a-z0-9]{6})-\d+"),  # namespaces
    re.compile(r"fy([a-z0-9]{6})-\d+"),  # interfaces
    re.compile(r"forkyard-([a-z0-9]{6})(?:-[a-z]+)?"),  # control groups
)


@dataclass(frozen=True, slots=True)
class Remains:
    """What one instance has on this host."""

    instance: str
    data_dir: Path | None
    """As far as it can be told."""
    served: bool
    """Whether a server of it runs now."""
    found: tuple[str, ...]
    """Names of slots, namespaces, interfaces, control groups and the table."""

    @property
    def dead(self) -> bool:
        """No server runs and none can: its data directory is gone or is another instance's by now.

        A server that is only stopped is not dead: its sandboxes run on and are taken over at its next start.
        """
        if self.served:
            return False
        return self.data_dir is None or read_instance_id(self.data_dir) != self.instance


async def find_remains(shared: Path = SHARED) -> list[Remains]:
    """Of every instance that anything on this host is named after."""
    tables = await run_command(["nft", "list", "tables"], timeout=_TIMEOUT, env=_SBIN)
    names = re.findall(r"^table inet (forkyard_([a-z0-9]{6}))$", tables.stdout.decode(), re.MULTILINE)
    return await asyncio.to_thread(_find, shared / CLAIMS, [(instance, table) for table, instance in names])


async def clean(remains: Remains, shared: Path = SHARED) -> None:
    """End and remove everything of a dead instance. Idempotent. Raises HostError if it is not dead."""
    if not remains.dead:
        raise HostError(
            f"instance {remains.instance} is not dead; stop its server with `forkyard down` instead"
        )
    # Processes first (keeper, edge, sandboxes): without the packet filter none of them may be there.
    for group in [name for name in remains.found if name.startswith("forkyard-")]:
        await remove_group(group)
    await asyncio.to_thread(_remove_slots, remains.instance)
    result = await run_command(
        ["nft", "-f", "-"], stdin=render_teardown(remains.instance).encode(), timeout=_TIMEOUT, env=_SBIN
    )
    result.check()
    (shared / CLAIMS / remains.instance).unlink(missing_ok=True)


def _find(claims: Path, tables: list[tuple[str, str]]) -> list[Remains]:
    found: dict[str, set[str]] = {}
    directories: dict[str, Path] = {}
    for instance, table in tables:
        found.setdefault(instance, set()).add(f"table {table}")
    for subnet, owner in all_reservations(RESERVATIONS):
        found.setdefault(owner.instance, set()).add(f"reservation {subnet}")
        directories[owner.instance] = Path(owner.data_dir)
    for name in [*namespaces.names("fy-"), *(name for _, name in socket.if_nameindex()), *_group_names()]:
        for pattern in _NAMES:
            if match := pattern.fullmatch(name):
                found.setdefault(match[1], set()).add(name)
    served: dict[str, bool] = {}
    for claim in claims.iterdir() if claims.is_dir() else ():
        found.setdefault(claim.name, set())
        served[claim.name] = _is_locked(claim)
        directories[claim.name] = Path(claim.read_text().strip())
    return [
        Remains(name, directories.get(name), served.get(name, False), tuple(sorted(names)))
        for name, names in sorted(found.items())
    ]


def _group_names() -> set[str]:
    names: set[str] = set()
    with suppress(HostError):
        for root in hierarchies().roots:
            with suppress(OSError), os.scandir(root) as entries:
                names.update(entry.name for entry in entries if entry.name.startswith("forkyard-"))
    return names


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _remove_slots(instance: str) -> None:
    slots = Slots(AddressPool(instance), Reservations(instance, Path("/")))
    slots.open()
    try:
        slots.sweep(set())
    finally:
        slots.close()
