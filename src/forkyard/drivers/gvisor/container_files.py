"""What lies in a container's directory: its bundle, runsc's state, and the record that the keeper keeps too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from forkyard.host.disk import write_atomically
from forkyard.host.errors import ProcessGone
from forkyard.host.processes import ProcessHandle

_RECORD = "keeper.json"


class Phase(StrEnum):
    """As in the keeper's records; a keeper undoes a container whose phase it does not know as being complete."""

    CREATING = "creating"
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


class ContainerFiles:
    """One container's directory. All methods block, for well under a millisecond."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    def make(self, spec: dict[str, Any]) -> None:
        """The directory with its bundle in it. Raises FileExistsError."""
        self.path.mkdir(mode=0o711)
        (self.path / spec["root"]["path"]).mkdir(exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(spec))
        self.write(Phase.CREATING)

    def write(
        self, phase: Phase, *, cgroup: str | None = None, pids: list[ProcessHandle] | None = None
    ) -> None:
        """Change the record; what is not given stays."""
        record = self._record()
        record.setdefault("created_at", datetime.now(UTC).isoformat().replace("+00:00", "Z"))
        record |= {"id": self.id, "phase": phase.value}
        if cgroup is not None:
            record["cgroup"] = cgroup
        for key, process in zip(("sandbox", "gofer"), pids or (), strict=False):
            record[key] = {"pid": process.pid, "start_time": process.start_time}
        write_atomically(self.path / _RECORD, json.dumps(record).encode(), durable=False)

    def phase(self) -> Phase | None:
        """None when there is no container."""
        try:
            return Phase(self._record()["phase"])
        except (KeyError, ValueError):
            return None

    def pids(self) -> list[ProcessHandle]:
        """Sandbox and gofer, as far as they are recorded; they may have ended."""
        record = self._record()
        found = [record[key] for key in ("sandbox", "gofer") if record.get(key, {}).get("pid")]
        return [ProcessHandle(int(entry["pid"]), int(entry["start_time"])) for entry in found]

    def has_state(self) -> bool:
        return any(self.path.glob("*.state"))

    def state_pids(self) -> list[ProcessHandle]:
        """Sandbox and gofer, as runsc's own state has them, those that live."""
        found: list[ProcessHandle] = []
        for state in self.path.glob("*.state"):
            try:
                value: Any = json.loads(state.read_bytes())
                pids = (int(value["sandbox"]["pid"]), int(value["goferPid"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            for pid in pids:
                try:
                    found.append(ProcessHandle.of(pid))
                except ProcessGone:
                    continue
        return found

    def _record(self) -> dict[str, Any]:
        try:
            value: Any = json.loads((self.path / _RECORD).read_bytes())
        except (OSError, ValueError):
            return {}
        return cast(dict[str, Any], value) if isinstance(value, dict) else {}
