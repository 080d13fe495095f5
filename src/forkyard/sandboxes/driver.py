"""The driver interface: what the core asks of a thing that makes machines.

A *machine* is one isolated computer made by a driver; a *sandbox* is the durable object that owns at most one
machine at a time. Drivers get data and return data: they never see the store, a request or the app.

Rules every driver keeps (checked by `forkyard.testing.driver_contract` against the fake and each real driver):

* Every method may be called concurrently for different machines; calls for one machine are serialised by the driver.
* `destroy` is idempotent and ends everything of that name: processes, network, cgroup, files. A machine that is
  being created under that name is ended too.
* A call that raises has left nothing behind, except `checkpoint`, which has left the machine running.
* A cancelled call behaves like one that raised.
* Answers of a machine are hostile: every call is bounded in time and size.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from forkyard.base.errors import Conflict, ForkyardError, StorageFull
from forkyard.host.egress import EgressPolicy

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "CheckpointResult",
    "Driver",
    "DriverError",
    "EgressPolicy",
    "Handle",
    "HostFull",
    "MachineEvent",
    "MachineEventKind",
    "MachineLost",
    "MachineSpec",
    "MachineStats",
    "MachineStatus",
    "Network",
    "Prewarm",
    "Restore",
    "Shape",
    "SnapshotUnusable",
    "Stats",
]


class DriverError(ForkyardError):
    """The sandbox driver failed."""

    code = "driver_error"


class MachineLost(DriverError):
    """The machine is gone or does not answer."""

    code = "machine_lost"


class HostFull(StorageFull):
    """The host's disk is full."""

    code = "host_full"


class SnapshotUnusable(Conflict):
    """The snapshot cannot be restored here."""

    code = "snapshot_unusable"


@dataclass(frozen=True, slots=True)
class Shape:
    """What must be equal for an empty machine prepared ahead to be usable: a restore needs the very same spec."""

    image: str
    """sha256 (hex) of the root image *file*."""
    envd: str
    """sha256 (hex) of the envd binary."""
    runtime: str
    """sha256 (hex) of the runtime binary; "" for the newest one installed."""
    vcpus: int
    memory_mb: int
    disk_mb: int


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine to be made."""

    name: str
    """Unique in this instance, `^[a-z0-9-]{1,64}$`; the driver's processes, cgroup and files carry it."""
    shape: Shape
    egress: EgressPolicy
    hostname: str = "sandbox"


@dataclass(frozen=True, slots=True)
class Handle:
    """Names one machine; JSON that the caller stores and hands back, after a restart too."""

    driver: str
    name: str
    address: str
    """IPv4 address at which the host reaches the machine."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The driver's own: pid and start time, slot, runtime, shape."""

    def to_json(self) -> dict[str, Any]:
        return {"driver": self.driver, "name": self.name, "address": self.address, "data": dict(self.data)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Handle:
        return cls(value["driver"], value["name"], value["address"], dict(value["data"]))


@dataclass(frozen=True, slots=True)
class MachineStatus:
    running: bool
    reason: str = ""
    """Why it is not running: "exited 1", "signal KILL", "unknown"."""


class MachineEventKind(StrEnum):
    EXIT = "exit"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class MachineEvent:
    kind: MachineEventKind
    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MachineStats:
    """One sample; all sizes in bytes."""

    cpu_ns: int
    """CPU time used since the machine started."""
    memory: int
    memory_cache: int
    disk: int


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    files: tuple[CheckpointFile, ...]
    requires: Mapping[str, Any]
    """What a restore needs (shape, CPU features, versions); kept in the manifest, read by `check` and `spec_of`."""


@runtime_checkable
class Driver(Protocol):
    """Makes machines from an image."""

    name: str

    async def open(self) -> None:
        """Connect to (or start) what the driver needs; machines made before are found again."""
        ...

    async def close(self) -> None:
        """Let go; machines in use go on running, what was prepared ahead is ended."""
        ...

    async def ping(self) -> None:
        """Cheap. Raises DriverError when what machines are made with does not answer."""
        ...

    def shape(self, *, image: str, vcpus: int, memory_mb: int, disk_mb: int) -> Shape:
        """The shape of a fresh machine with the newest envd and runtime."""
        ...

    async def create(self, spec: MachineSpec) -> Handle:
        """Boot a machine from its image. Returns when envd's process runs, not when it answers."""
        ...

    async def inspect(self, handle: Handle) -> MachineStatus:
        """Whether the machine's process lives and has a network (cut or not), without asking the machine."""
        ...

    async def destroy(self, handle_or_name: Handle | str) -> None:
        """End the machine and free all of it. Idempotent. The caller has had its route taken away before."""
        ...

    async def list_handles(self) -> Sequence[Handle]:
        """Every machine of this instance that is not destroyed, prepared ones excepted."""
        ...

    def events(self) -> AsyncIterator[MachineEvent]:
        """Deaths and illnesses as they happen, from now on. Ends on `close`."""
        ...

    async def watch(self, handle: Handle) -> None:
        """Start the health and memory watch of a machine whose envd has answered once."""
        ...


@runtime_checkable
class Checkpoint(Protocol):
    async def checkpoint(
        self, handle: Handle, directory: Path, *, leave_running: bool = True
    ) -> CheckpointResult:
        """Write the machine's whole state into `directory` (made, must not exist).

        Raises HostFull, MachineLost, DriverError; then the directory is gone and, with `leave_running`, the machine
        goes on.
        """
        ...


@runtime_checkable
class Restore(Protocol):
    def spec_of(
        self, requires: Mapping[str, Any], *, name: str, egress: EgressPolicy, hostname: str = "sandbox"
    ) -> MachineSpec:
        """The spec a snapshot with these requirements has to be restored with."""
        ...

    async def check(
        self, directory: Path, requires: Mapping[str, Any], files: Sequence[CheckpointFile]
    ) -> None:
        """Raise SnapshotUnusable, naming what is missing or differs, before anything is stopped or started."""
        ...

    async def restore(self, spec: MachineSpec, directory: Path) -> Handle:
        """Make a machine that goes on from a checkpoint. Returns when its processes run."""
        ...


@runtime_checkable
class Network(Protocol):
    async def cut(self, handle: Handle) -> None:
        """Nothing gets in or out any more, in established flows too. Idempotent."""
        ...

    async def uncut(self, handle: Handle) -> None:
        """Give the network back. Idempotent. Raises MachineLost when there is none."""
        ...

    async def set_egress(self, handle: Handle, policy: EgressPolicy) -> None:
        """Replace the egress policy atomically; established flows follow it."""
        ...


@runtime_checkable
class Stats(Protocol):
    async def stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        """Samples by machine name, in one pass; machines that are gone are left out."""
        ...


@runtime_checkable
class Prewarm(Protocol):
    """Empty machines prepared ahead, by shape."""

    def demand(self, shape: Shape, count: int) -> None:
        """Keep `count` empty machines of this shape ready (0 lets them go). Never blocks; filled behind."""
        ...

    def hold(self, held: bool) -> None:
        """Let all of them go and make no more, whatever is in demand (the host has no memory left), or go on."""
        ...

    def prepared(self) -> Mapping[Shape, int]:
        """How many are ready now."""
        ...


DriverName = Literal["gvisor", "firecracker", "qemu", "kubernetes", "fake"]
