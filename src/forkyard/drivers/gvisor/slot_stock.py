"""A few network slots made as new again, because a recycled one costs much less than another one."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.host.addresses import Slot
from forkyard.host.network import HostNetwork
from forkyard.sandboxes.driver import EgressPolicy

log = get_logger(__name__)

MOST_SPARE = 16
PLAIN = EgressPolicy()


class SlotStock:
    def __init__(self, network: HostNetwork) -> None:
        self._network = network
        self._spare: list[Slot] = []

    async def take(self, policy: EgressPolicy) -> Slot:
        """A slot under this policy. Raises what `HostNetwork.create` raises."""
        if not self._spare:
            return await self._network.create(policy)
        slot = self._spare.pop()
        if policy != PLAIN:
            try:
                await self._network.set_policy(slot, policy)
            except BaseException:
                await self._network.remove(slot)
                raise
        return slot

    async def give_back(self, slot: Slot) -> None:
        """Only when its machine is dead and the edge knows nothing of it any more."""
        if len(self._spare) < MOST_SPARE:
            try:
                await self._network.recycle(slot, PLAIN)
            except ForkyardError as error:
                log.warning("a slot could not be recycled", slot=slot.number, error=error.message)
            else:
                self._spare.append(slot)
                return
        await self._network.remove(slot)

    async def drain(self) -> None:
        spare, self._spare = self._spare, []
        for slot in spare:
            await self._network.remove(slot)
