"""Acts on what the driver reports: deaths, daemons that stop answering, memory running out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Core, insist
from forkyard.sandboxes.driver import Handle, MachineEvent, MachineEventKind
from forkyard.sandboxes.endings import machine_died, remove_machine
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.state import State
from forkyard.sandboxes.warm import WarmPool

log = get_logger(__name__)

_WATCHED = (State.RUNNING, State.SNAPSHOTTING)
_WITH_MACHINE = (*_WATCHED, State.PAUSING)


class MachineEvents:
    """One loop a node."""

    def __init__(
        self, core: Core, pool: WarmPool, memory_is_short: Callable[[str], None] | None = None
    ) -> None:
        """`memory_is_short` is told of a sandbox (id) whose memory is running out."""
        self._core = core
        self._memory_is_short = memory_is_short
        self._pool = pool

    async def run(self) -> None:
        """Handle events until the driver is closed. Each is handled by itself: one that waits holds up none."""
        async for event in self._core.driver.events():
            self._core.operations.start_logged(self.handle(event), f"{event.kind}-{event.name}")

    async def handle(self, event: MachineEvent) -> None:
        core = self._core
        match event.kind:
            case MachineEventKind.EXIT:
                if self._pool.discard(event.name):
                    await remove_machine(core, event.name)
                else:
                    await machine_died(core, event.name, event.reason)
            case MachineEventKind.UNHEALTHY:
                core.telemetry.unhealthy.inc()
                await self._note_health(event.name, event.reason or "its daemon does not answer")
            case MachineEventKind.HEALTHY:
                await self._note_health(event.name, None)
            case MachineEventKind.MEMORY:
                await self._memory(event.name)

    async def _note_health(self, machine: str, reason: str | None) -> None:
        core = self._core
        row = await self._row_of(machine, _WITH_MACHINE)
        if row is None or row.unhealthy_reason == reason:
            return
        # Each is told once: what is told during a capture, or a pause that fails, must not be lost either, and not be
        # said of the machine that comes next.
        await insist(
            core,
            lambda: core.store.set_values(
                row.id,
                states=_WITH_MACHINE,
                generation=row.generation,
                values={"unhealthy_reason": reason},
            ),
        )
        if row.state is State.PAUSING:
            return  # With its network cut nobody can answer: if the pause fails it is told once more.
        if reason is None:
            core.journal.write(row.id, "its daemon answers again")
        else:
            log.warning("sandbox is unhealthy", sandbox_id=row.id, reason=reason)
            core.journal.write(row.id, "unhealthy", level="warn", reason=reason)

    async def _memory(self, machine: str) -> None:
        row = await self._row_of(machine, _WATCHED)
        if row is None or row.handle is None:
            return
        self._core.journal.write(row.id, "memory is running out", level="warn")
        if self._memory_is_short is not None:
            self._memory_is_short(row.id)
        try:
            await self._core.guests.memory_pressure(Handle.from_json(row.handle).address, timeout_s=2.0)
        except ForkyardError as error:
            log.warning("guest does not hear of memory pressure", sandbox_id=row.id, error=error.message)

    async def _row_of(self, machine: str, states: Collection[State]) -> Sandbox | None:
        row = await self._core.store.by_machine(self._core.node_id, machine)
        return row if row is not None and row.state in states else None
