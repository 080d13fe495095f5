"""Which instance on this host has which /30: one file each, under a directory all instances share.

A file appears with all of its content or not at all, so there is never one that belongs to nobody.
"""

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

from forkyard.host.addresses import Slot

DIRECTORY = Path("/run/forkyard/slots")

_TEMPORARY = ".new-"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a reservation."""

    instance: str
    number: int
    """The slot's number, which its namespace and interface are named by."""
    data_dir: str
    pid: int
    created_at: float
    """Seconds since 1970."""


class Reservations:
    """Takes and releases /30s for one instance. All methods block, for well under a millisecond."""

    def __init__(self, instance: str, data_dir: Path, directory: Path = DIRECTORY) -> None:
        self._instance = instance
        self._data_dir = data_dir
        self._directory = directory

    def prepare(self) -> None:
        """Make the directory, and remove what this instance's dead predecessors left half-done."""
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in self._directory.glob(f"{_TEMPORARY}{self._instance}-*"):
            path.unlink(missing_ok=True)

    def take(self, slot: Slot) -> bool:
        """Reserve its subnet; False when anybody (this instance too) has it."""
        owner = Owner(self._instance, slot.number, str(self._data_dir), os.getpid(), time.time())
        temporary = self._directory / f"{_TEMPORARY}{self._instance}-{secrets.token_hex(6)}"
        try:
            temporary.write_text(json.dumps(asdict(owner)))
        except FileNotFoundError:
            # The last instance of a moment ago took the directory away.
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(owner)))
        try:
            os.link(temporary, self._path(slot.subnet))
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def release(self, subnet: IPv4Network) -> None:
        """Give up a reservation of this instance; one that is not there, or another's, is left as it is."""
        owner = read_owner(self._path(subnet))
        if owner is not None and owner.instance == self._instance:
            self._path(subnet).unlink(missing_ok=True)

    def own(self) -> list[Slot]:
        """The slots reserved by this instance, by this process or an earlier one, whatever its range was."""
        return [
            Slot(owner.instance, owner.number, subnet)
            for subnet, owner in all_reservations(self._directory)
            if owner.instance == self._instance
        ]

    def taken(self) -> set[IPv4Network]:
        """The subnets reserved by anybody."""
        return {subnet for path in _files(self._directory) if (subnet := _subnet_of(path.name)) is not None}

    def _path(self, subnet: IPv4Network) -> Path:
        # By address and not by number: pools of different instances may overlap with other bases.
        return self._directory / f"{subnet.network_address}-{subnet.prefixlen}"


def all_reservations(directory: Path = DIRECTORY) -> list[tuple[IPv4Network, Owner]]:
    """Every reservation on this host that can be read."""
    found: list[tuple[IPv4Network, Owner]] = []
    for path in _files(directory):
        subnet, owner = _subnet_of(path.name), read_owner(path)
        if subnet is not None and owner is not None:
            found.append((subnet, owner))
    return sorted(found, key=lambda pair: pair[0])


def read_owner(path: Path) -> Owner | None:
    """None if the file is gone or not one of ours."""
    try:
        value: Any = json.loads(path.read_bytes())
        fields = cast(dict[str, Any], value)
        return Owner(
            str(fields["instance"]),
            int(fields["number"]),
            str(fields["data_dir"]),
            int(fields["pid"]),
            float(fields["created_at"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _subnet_of(name: str) -> IPv4Network | None:
    address, _, length = name.rpartition("-")
    try:
        return IPv4Network(f"{address}/{length}")
    except ValueError:
        return None
