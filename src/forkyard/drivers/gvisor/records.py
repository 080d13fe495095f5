"""What the driver must know of its machines after a restart: a small JSON file each, written before it is made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from forkyard.base.logging import get_logger
from forkyard.host.disk import write_atomically
from forkyard.sandboxes.driver import EgressPolicy, Shape

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MachineRecord:
    name: str
    container: str
    """Id at the runtime; another than the name when the machine was restored into an empty one."""
    slot: int
    address: str
    shape: Shape
    egress: EgressPolicy
    cut: bool = False


class MachineRecords:
    """In memory, and in one file a machine. Not durable over a crash of the host: the machines die with it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._records: dict[str, MachineRecord] = {}

    def load(self) -> None:
        """Read the directory; files that cannot be read are of a write that was cut off, and are removed."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._records = {}
        for path in sorted(self._root.iterdir()):
            try:
                record = _parse(path.read_text())
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning(
                    "removing a machine record that cannot be read", path=str(path), error=repr(error)
                )
                path.unlink(missing_ok=True)
                continue
            self._records[record.name] = record

    def all(self) -> list[MachineRecord]:
        return list(self._records.values())

    def get(self, name: str) -> MachineRecord | None:
        return self._records.get(name)

    def by_container(self, container: str) -> MachineRecord | None:
        return next((r for r in self._records.values() if r.container == container), None)

    def put(self, record: MachineRecord) -> None:
        self._records[record.name] = record
        write_atomically(self._path(record.name), _render(record).encode(), durable=False)

    def change(self, name: str, *, cut: bool | None = None, egress: EgressPolicy | None = None) -> None:
        """Nothing when there is no such machine."""
        record = self._records.get(name)
        if record is None:
            return
        if cut is not None:
            record = replace(record, cut=cut)
        if egress is not None:
            record = replace(record, egress=egress)
        self.put(record)

    def remove(self, name: str) -> None:
        self._records.pop(name, None)
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if os.sep in name or name.startswith("."):
            raise ValueError(f"{name!r} is not a machine name")
        return self._root / f"{name}.json"


def _render(record: MachineRecord) -> str:
    value = asdict(record)
    value["egress"] = {
        "allow": [str(n) for n in record.egress.allow],
        "deny": [str(n) for n in record.egress.deny],
        "allow_internet": record.egress.allow_internet,
    }
    return json.dumps(value)


def _parse(text: str) -> MachineRecord:
    value = json.loads(text)
    egress = value.pop("egress")
    shape = value.pop("shape")
    return MachineRecord(
        **value,
        shape=Shape(**shape),
        egress=EgressPolicy(
            allow=tuple(IPv4Network(n) for n in egress["allow"]),
            deny=tuple(IPv4Network(n) for n in egress["deny"]),
            allow_internet=bool(egress["allow_internet"]),
        ),
    )
