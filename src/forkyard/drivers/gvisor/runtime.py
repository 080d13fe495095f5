"""What the driver asks of a container runtime. The keeper's client is one implementation, the command line another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from forkyard.host.addresses import Slot
from forkyard.sandboxes.driver import CheckpointFile, DriverError


class ContainerUnusable(DriverError):
    """The container is in another state than the call needs: it has ended, for instance."""

    code = "container_unusable"


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    status: str
    """created, running or stopped."""
    pid: int
    pid_start_time: int
    reason: str
    """Why it stopped."""


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    type: str
    """exit, unhealthy, healthy or memory."""
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    spec: dict[str, Any]
    log: str
    """File for the daemon's output, as the runtime sees it."""
    cgroup_memory_limit: int
    slot: Slot


class Runtime(Protocol):
    """One version of the runtime. Errors are those of `sandboxes.driver`; a `create`, `start` or `restore` that raises
    has left nothing, except ContainerUnusable, which leaves the container as it was.
    """

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def shutdown(self) -> None:
        """End the runtime's own process; containers go on."""
        ...

    async def ping(self) -> None:
        """Raises DriverError when its own process does not answer; does not start another."""
        ...

    async def list(self) -> Sequence[Container]: ...

    async def get(self, container_id: str) -> Container | None: ...

    async def create(self, container_id: str, request: ContainerRequest) -> Container: ...

    async def start(self, container_id: str, slot: Slot) -> Container: ...

    async def restore(self, container_id: str, directory: Path, slot: Slot) -> Container: ...

    async def checkpoint(
        self, container_id: str, directory: Path, *, leave_running: bool
    ) -> Sequence[CheckpointFile]: ...

    async def delete(self, container_id: str) -> None:
        """Idempotent."""
        ...

    async def watch(self, container_id: str, *, guest_url: str, memory_marks: Sequence[int]) -> None:
        """Tell (events) when the daemon at `guest_url` stops answering, or memory in use passes a mark (bytes)."""
        ...

    def events(self) -> AsyncIterator[ContainerEvent]:
        """From the opening of the runtime on, deaths that happened while nobody looked included."""
        ...
