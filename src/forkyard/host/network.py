"""The network of one instance: slots and the packet filter around them, put together in the right order.

The packet filter stands before the first slot and until after the last one, and a slot that is not bound in it can
neither send nor receive: whatever is killed in the middle of an operation, nothing is left open.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.tasks import Operations, Supervisor
from forkyard.host.addresses import AddressPool, Slot
from forkyard.host.egress import EgressPolicy
from forkyard.host.errors import SlotNotFound
from forkyard.host.firewall import Binding, Firewall, FirewallConfig
from forkyard.host.reservations import Reservations
from forkyard.host.slots import Slots

log = get_logger(__name__)

T = TypeVar("T")

_THREADS = 3
_CLOSING = 30.0
_MOST_AT_ONCE = 64
"""Slots removed in one batch; the others wait for the next one."""


class HostNetwork:
    """Everything about slots that the rest of the server needs. Open it in the host's network namespace.

    Operations go on to their end when the caller is cut off; a slot that nobody waits for any more is removed.
    """

    def __init__(
        self, instance: str, data_dir: Path, config: FirewallConfig | None = None, mtu: int | None = None
    ) -> None:
        """`mtu` of the slots; None for that of the host's default route, at most 1500."""
        self._config = config or FirewallConfig()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="host-network")
        # One after another: the kernel has one lock for all of it, and 16 at once took twice as long with 4 threads.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="host-slots")
        pool = AddressPool(instance, self._config.slot_range)
        self._slots = Slots(pool, Reservations(instance, data_dir), mtu)
        self._firewall = Firewall(instance, self._config, self._executor)
        self._operations = Operations()
        self._supervisor = Supervisor(first_delay=0.1, most_delay=5.0)
        self._doomed: list[tuple[Slot, asyncio.Future[None]]] = []
        self._removing = False

    async def open(self, bindings: Mapping[int, tuple[EgressPolicy, bool]]) -> dict[int, Slot]:
        """Take over the slots of an earlier process that are still in use, and remove its others.

        `bindings` has, by slot number, the policy and whether the network is cut. Answers the slots that are there;
        what is not among them has lost its network. Raises RequirementMissing, FirewallError, HostError.
        """
        await self._in_thread(self._slots.open)
        own = {slot.number: slot for slot in await self._in_thread(self._slots.own)}
        # Before anything else, so that there is no moment without a packet filter.
        await self._firewall.open(
            Binding(own[number], policy, cut) for number, (policy, cut) in bindings.items() if number in own
        )
        found: dict[int, Slot] = {}
        for number in bindings:
            try:
                found[number] = await self._in_thread(lambda number=number: self._slots.adopt(number))
            except SlotNotFound as error:
                log.warning("a slot is lost", slot=number, reason=error.message)
        await self.sweep(set(found))
        self._supervisor.start("packet filter guard", self._firewall.guard)
        return found

    async def close(self) -> None:
        """Let go. Slots and packet filter stay in force for what runs on, and for the next process."""
        await self._operations.drain(_CLOSING)
        await self._supervisor.stop()
        await self._firewall.close()
        await self._in_thread(self._slots.close)
        self._executor.shutdown()
        self._maker.shutdown()

    async def teardown(self) -> None:
        """Remove all slots and the packet filter; `close` is still to be called."""
        await self._supervisor.stop()
        await self.sweep(set())
        await self._firewall.teardown()

    async def create(self, policy: EgressPolicy, *, cut: bool = False) -> Slot:
        """A new slot that works under `policy`. Raises NoFreeSlot, NetlinkError, FirewallError, HostError."""
        return await self._or_remove(self._create(policy, cut))

    async def recycle(self, slot: Slot, policy: EgressPolicy, *, cut: bool = False) -> None:
        """Make a slot as new for the next machine, under its policy.

        Only after the old machine's process is dead and the edge has acknowledged that its route is gone.
        Raises SlotNotFound, NetlinkError, FirewallError; then remove the slot.
        """
        await self._operations.run_detached(self._recycle(slot, policy, cut))

    async def remove(self, slot: Slot) -> None:
        """Remove a slot; one that is gone is fine. Those asked for at about the same time go in one batch."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._doomed.append((slot, done))
        if not self._removing:
            self._removing = True
            self._operations.start_logged(self._remove_doomed(), "removing network slots")
        await asyncio.shield(done)

    async def set_policy(self, slot: Slot, policy: EgressPolicy) -> None:
        """Replace what a slot may reach, in one step and for established connections too.

        Raises SlotNotFound, FirewallError.
        """
        await self._firewall.set_policy(slot, policy)

    async def cut(self, slot: Slot) -> None:
        """When this returns nothing gets from or to the slot. Idempotent. Raises SlotNotFound, FirewallError."""
        await self._firewall.cut(slot)

    async def uncut(self, slot: Slot) -> None:
        """Undo `cut`: established connections go on. Idempotent. Raises SlotNotFound, FirewallError."""
        await self._firewall.uncut(slot)

    async def list_own(self) -> set[int]:
        """Numbers of all slots reserved by this instance."""
        return {slot.number for slot in await self._in_thread(self._slots.own)}

    async def sweep(self, keep: set[int]) -> list[int]:
        """Remove everything of this instance but the slots in `keep`; answers the numbers removed."""
        removed = await self._in_thread(lambda: self._slots.sweep(keep))
        if removed:
            log.info("removed network slots that nothing uses", slots=removed)
        await self._firewall.detach(b.slot for b in self._firewall.bindings() if b.slot.number not in keep)
        return removed

    async def _create(self, policy: EgressPolicy, cut: bool) -> Slot:
        slot = await self._in_thread(self._slots.create, self._maker)
        try:
            await self._firewall.attach(slot, policy, cut=cut)
        except BaseException:
            await self._in_thread(lambda: self._slots.remove([slot]))
            raise
        return slot

    async def _recycle(self, slot: Slot, policy: EgressPolicy, cut: bool) -> None:
        await self._firewall.detach([slot])
        connected = await self._firewall.may_have_connections(slot)
        await self._in_thread(lambda: self._slots.recycle(slot), self._maker)
        if connected:
            await self._in_thread(lambda: self._slots.forget_connections([slot]))
            self._firewall.connections_forgotten(slot)
        await self._firewall.attach(slot, policy, cut=cut)

    async def _or_remove(self, making: Coroutine[Any, Any, Slot]) -> Slot:
        """The slot being made; if nobody waits for it any more, it is removed when it is there."""
        task = self._operations.start(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._operations.start_logged(self._discard(task), "removing a slot that nobody waits for")
            raise

    async def _discard(self, task: asyncio.Task[Slot]) -> None:
        try:
            slot = await task
        except ForkyardError as error:
            log.info("making a slot failed when nobody waited for it any more", error=error.message)
            return
        await self.remove(slot)

    async def _remove_doomed(self) -> None:
        try:
            while self._doomed:
                batch, self._doomed = self._doomed[:_MOST_AT_ONCE], self._doomed[_MOST_AT_ONCE:]
                try:
                    await self._remove_all([slot for slot, _done in batch])
                except Exception as error:
                    _settle(batch, error)
                else:
                    _settle(batch, None)
        finally:
            self._removing = False

    async def _remove_all(self, slots: list[Slot]) -> None:
        await self._firewall.detach(slots)
        connected = {slot.number for slot in slots if await self._firewall.may_have_connections(slot)}
        await self._in_thread(lambda: self._slots.remove(slots, connected))
        for slot in slots:
            self._firewall.connections_forgotten(slot)

    async def _in_thread(self, work: Callable[[], T], executor: ThreadPoolExecutor | None = None) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor or self._executor, work)


def _settle(batch: list[tuple[Slot, asyncio.Future[None]]], error: Exception | None) -> None:
    for _slot, done in batch:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
            done.exception()  # whoever waited may be gone; then it is in the log
