"""What an instance has on this host, to be compared with what its store says."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select

from forkyard.host.instance import read_instance_id
from forkyard.sandboxes.models import Sandbox, Snapshot
from forkyard.sandboxes.state import STEADY, State
from forkyard.storage.engine import parse_database_url, sqlite_url
from forkyard.storage.session import Database
from scripts.leftovers import look
from tests.e2e.waiting import until

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Records:
    """The store's rows."""

    sandboxes: list[Sandbox] = field(default_factory=list[Sandbox])
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])

    def state(self, sandbox_id: str) -> State:
        """A sandbox without a record is gone."""
        return next((row.state for row in self.sandboxes if row.id == sandbox_id), State.GONE)

    def of(self, *states: State) -> list[Sandbox]:
        return [row for row in self.sandboxes if row.state in states]


def instance_of(data_dir: Path) -> str:
    found = read_instance_id(data_dir)
    assert found is not None
    return found


def records(data_dir: Path, database_url: str | None = None) -> Records:
    """All rows, read beside the server (or without one)."""
    url = parse_database_url(database_url) if database_url else sqlite_url(data_dir / "forkyard.db")

    async def read() -> Records:
        database = Database(url)
        try:
            async with database.read() as session:
                return Records(
                    list(await session.scalars(select(Sandbox))),
                    list(await session.scalars(select(Snapshot))),
                )
        finally:
            await database.close()

    return asyncio.run(read())


def processes(instance: str, program: str = "") -> list[int]:
    """Pids in the control groups of an instance, whose command line holds `program`."""
    found: set[int] = set()
    for group in _cgroups(instance):
        with suppress(OSError):
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
    return sorted(pid for pid in found if program in command_line(pid))


def pid_of_program(data_dir: Path, program: str) -> int:
    """The edge or the keeper of a server. Raises ValueError when there is none."""
    (pid,) = [
        pid
        for pid in processes(instance_of(data_dir))
        if os.path.basename(command_line(pid).partition(" ")[0]) == program
    ]
    return pid


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for found in lists for child in found]


def process_of_sandbox(data_dir: Path, sandbox_id: str) -> int:
    """The pid of the sandbox process of a running sandbox."""
    container = _machine_of(data_dir, sandbox_id)["container"]
    (pid,) = [
        p
        for p in processes(instance_of(data_dir), "runsc-sandbox")
        if f"/{container} " in f"{command_line(p)} "
    ]
    return pid


def address_of_sandbox(data_dir: Path, sandbox_id: str) -> str:
    """Where the host reaches a running sandbox."""
    return str(_machine_of(data_dir, sandbox_id)["address"])


def namespace_of_sandbox(data_dir: Path, sandbox_id: str) -> str:
    """The name of the network namespace of a running sandbox."""
    slot = _machine_of(data_dir, sandbox_id)["slot"]
    (name,) = [n for n in look().namespaces if n.endswith(f"{instance_of(data_dir)}-{slot}")]
    return name


def on_host(data_dir: Path) -> list[str]:
    """One line for everything on the host that is this instance's."""
    instance = instance_of(data_dir)
    here = look()
    lines = [f"process {pid}: {command_line(pid)[:200]}" for pid in processes(instance)]
    lines += [f"namespace {name}" for name in here.namespaces if instance in name]
    lines += [f"table {name}" for name in here.tables if instance in name]
    lines += [f"link {name}" for name in here.links if instance in name]
    lines += [f"mount {name}" for name in here.mounts if name.startswith(f"{data_dir}/") or instance in name]
    lines += [f"control group {path}" for path in _cgroups(instance)]
    lines += [f"reservation {path.name}" for path in _reservations(instance)]
    return sorted(lines)


def disagreements(data_dir: Path, database_url: str | None = None) -> list[str]:
    """Where store, machines, network and disk of a server without pools do not agree; empty when all is well."""
    rows = records(data_dir, database_url)
    instance = instance_of(data_dir)
    lines = [
        f"{row.id} is {row.state.value}" for row in rows.sandboxes if row.state not in STEADY | {State.GONE}
    ]
    running = {row.handle["name"] for row in rows.of(State.RUNNING) if row.handle}
    machines = _machines(data_dir)
    lines += _differ("machine records", {m["name"] for m in machines}, running)
    containers = {m["container"] for m in machines}
    lines += _differ("sandbox processes", _containers(instance), containers)
    lines += _differ("volumes", _names(data_dir / "node" / "volumes"), containers)
    kept = {snapshot.id for snapshot in rows.snapshots if snapshot.state == "ready"}
    needed = {row.snapshot_id for row in rows.of(State.PAUSED)}
    lines += [f"{name} of a paused sandbox is not ready" for name in needed - kept]
    lines += _differ("snapshot directories", _names(data_dir / "snapshots"), kept)
    lines += [f"snapshot {s.id} is {s.state}" for s in rows.snapshots if s.state != "ready"]
    orphans = [s.id for s in rows.snapshots if s.kind == "fork" or (s.kind == "pause" and s.id not in needed)]
    lines += [f"snapshot {name} belongs to nobody" for name in orphans]
    slots = {
        int(path.read_text() and json.loads(path.read_text())["number"]) for path in _reservations(instance)
    }
    here = look()
    namespaces = {int(name.rpartition("-")[2]) for name in here.namespaces if instance in name}
    links = {int(name.rpartition("-")[2]) for name in here.links if instance in name}
    lines += _differ("namespaces", namespaces, slots)
    lines += _differ("links", links, slots)
    lines += [f"slot {m['slot']} is not reserved" for m in machines if m["slot"] not in slots]
    return lines


def check_agreement(data_dir: Path, database_url: str | None = None, timeout_s: float = 20.0) -> None:
    """Raises AssertionError with what still differs after a while: much is removed behind an answer."""
    last: list[str] = []

    def look_once() -> bool | None:
        try:
            last[:] = disagreements(data_dir, database_url)
        except FileNotFoundError as error:  # changed while it was read
            last[:] = [repr(error)]
        return None if last else True

    try:
        until(look_once, "agreement", timeout_s=timeout_s, interval_s=0.1)
    except AssertionError:
        raise AssertionError("store, host and disk differ:\n  " + "\n  ".join(last)) from None


def check_nothing_left(data_dir: Path, timeout_s: float = 10.0) -> None:
    """Raises AssertionError when an instance that has ended left anything on the host."""
    last: list[str] = []

    def look_once() -> bool | None:
        last[:] = on_host(data_dir)
        return None if last else True

    try:
        until(look_once, "nothing", timeout_s=timeout_s, interval_s=0.1)
    except AssertionError:
        raise AssertionError("left behind:\n  " + "\n  ".join(last)) from None


def _machines(data_dir: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in (data_dir / "node" / "machines").glob("*.json"):
        found.append(json.loads(path.read_text()))
    return found


def _machine_of(data_dir: Path, sandbox_id: str) -> dict[str, object]:
    """The driver's record of a running sandbox, which may have taken over a machine made ahead of need."""
    row = next(row for row in records(data_dir).sandboxes if row.id == sandbox_id)
    name = (row.handle or {})["name"]
    return next(machine for machine in _machines(data_dir) if machine["name"] == name)


def _containers(instance: str) -> set[str]:
    """Ids of the containers that have a living sandbox process."""
    found: set[str] = set()
    for pid in processes(instance, "runsc-sandbox"):
        words = command_line(pid).split()
        found.update(w.removeprefix("--root=").rpartition("/")[2] for w in words if w.startswith("--root="))
    return found


def _reservations(instance: str) -> list[Path]:
    found: list[Path] = []
    for path in Path("/run/forkyard/slots").glob("[!.]*"):
        with suppress(OSError, ValueError):
            if json.loads(path.read_text())["instance"] == instance:
                found.append(path)
    return found


def _cgroups(instance: str) -> list[Path]:
    found: list[Path] = []
    for folder, names, _files in os.walk(CGROUPS):
        depth = len(Path(folder).relative_to(CGROUPS).parts)
        if depth > 4:
            names.clear()
        found += [Path(folder, name) for name in names if instance in os.path.join(folder, name)]
    return found


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.exists() else set()


def _differ(what: str, found: Iterable[object], wanted: Iterable[object]) -> list[str]:
    found, wanted = set(found), set(wanted)
    lines = [f"{what}: {thing} is there and should not be" for thing in sorted(map(str, found - wanted))]
    return lines + [f"{what}: {thing} is missing" for thing in sorted(map(str, wanted - found))]
