"""The packet filter around all slots of an instance: one nftables table, one transaction for every change.

The table is written as text at the start and changed by single messages afterwards: a change takes 0.1 to 0.3 ms
however many slots there are. A slot that is not bound here can neither send nor receive.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

from forkyard.base.clock import Clock, SystemClock
from forkyard.base.logging import get_logger
from forkyard.base.subprocess import CommandFailed, CommandTimeout, run_command
from forkyard.base.tasks import Operations
from forkyard.host.addresses import Slot
from forkyard.host.egress import ALWAYS_DENIED, EgressPolicy, to_ranges
from forkyard.host.errors import FirewallError, NetlinkError, RequirementMissing, SlotNotFound
from forkyard.host.netlink.codec import Request, parse_messages
from forkyard.host.netlink.connection import NETFILTER, NetlinkConnection
from forkyard.host.netlink.tables import (
    ACCEPT,
    Table,
    Verdict,
    changed_table,
    ends_transaction,
    goto,
    interface_key,
    subscribe,
)
from forkyard.host.ruleset import (
    CONNECTIONS,
    CUT,
    EGRESS,
    REFUSE,
    SOURCES,
    Binding,
    FirewallConfig,
    chain_name,
    render,
    render_teardown,
    table_name,
)

__all__ = ["ALWAYS_DENIED", "Binding", "EgressPolicy", "Firewall", "FirewallConfig"]

log = get_logger(__name__)

T = TypeVar("T")

_GUARD_PAUSE = 0.5
"""Seconds between two repairs of the table, should somebody keep changing it."""

_ANNOUNCEMENT = 256 << 10
_NFT_TIMEOUT = 30.0
_NFT_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


class Firewall:
    """The table of one instance. Open it in the host's network namespace.

    Changes are done one after another, and to their end also when the caller is cut off. When the kernel refuses a
    single change (somebody has deleted the table) the whole table is written again with that change in it.
    """

    def __init__(
        self, instance: str, config: FirewallConfig, executor: Executor, clock: Clock | None = None
    ) -> None:
        self._instance = instance
        self._config = config
        self._executor = executor
        self._clock = clock or SystemClock()
        self._table = Table(table_name(instance))
        self._lock = asyncio.Lock()
        self._operations = Operations()
        self._bindings: dict[int, Binding] = {}
        self._own = 0
        """Transactions on the table that `nft` has done for us."""
        self._seen = 0
        """Those that were announced: more than our own means that somebody else has changed it."""
        self._touched = False
        """Whether the transaction whose announcements come in is about the table."""
        self._lost = False
        """Announcements were lost: anything may have happened."""
        self._uncounted: set[int] = set()
        """Slots that may have connections from before the table, and its list of who has any, was written."""

    async def open(self, bindings: Iterable[Binding]) -> None:
        """Write the table with these slots in it, instead of the one an earlier process may have left.

        It is one transaction: established connections of the slots do not notice. Raises FirewallError,
        RequirementMissing.
        """
        self._netlink = NetlinkConnection(NETFILTER)
        self._announcements = subscribe(but_not_of=self._netlink.port)
        await self._serialised(self._write({binding.slot.number: binding for binding in bindings}))

    async def close(self) -> None:
        """Let go; the table stays in force."""
        await self._operations.drain(_NFT_TIMEOUT)
        self._netlink.close()
        self._announcements.close()

    async def teardown(self) -> None:
        """Delete the table. No slot may be there any more: nothing would guard it."""
        await self._serialised(self._delete())

    async def guard(self) -> None:
        """Write the table again whenever somebody else has changed or deleted it. Never returns.

        `nft flush ruleset`, which restarting the nftables service does, would otherwise leave all slots unguarded.
        """
        while True:
            if self._changed_by_others:
                await self._serialised(self._repair())
                await self._clock.sleep(_GUARD_PAUSE)
            else:
                await self._announced()

    def bindings(self) -> list[Binding]:
        """What is in force."""
        return list(self._bindings.values())

    async def attach(self, slot: Slot, policy: EgressPolicy, *, cut: bool = False) -> None:
        """Let a slot send and receive under a policy; a bound one gets the new policy. Raises FirewallError."""
        await self._serialised(self._change(slot, lambda _old: Binding(slot, policy, cut)))

    async def set_policy(self, slot: Slot, policy: EgressPolicy) -> None:
        """Replace a slot's policy in one step; packets of established connections follow it from then on.

        Raises SlotNotFound, FirewallError.
        """
        await self._serialised(self._change(slot, lambda old: replace(_known(slot, old), policy=policy)))

    async def cut(self, slot: Slot) -> None:
        """When this returns nothing gets from or to the slot any more. Idempotent.

        Raises SlotNotFound, FirewallError.
        """
        await self._serialised(self._change(slot, lambda old: replace(_known(slot, old), cut=True)))

    async def uncut(self, slot: Slot) -> None:
        """Undo `cut`; established connections go on where they were. Idempotent.

        Raises SlotNotFound, FirewallError.
        """
        await self._serialised(self._change(slot, lambda old: replace(_known(slot, old), cut=False)))

    async def detach(self, slots: Iterable[Slot]) -> None:
        """Take slots out: they can neither send nor receive. Unknown ones are fine. Raises FirewallError."""
        await self._serialised(self._remove({slot.number for slot in slots}))

    async def may_have_connections(self, slot: Slot) -> bool:
        """Whether the slot has opened connections to elsewhere, which then have to be forgotten before reuse."""
        if slot.number in self._uncounted:
            return True
        request = self._table.find_element(CONNECTIONS, slot.address.packed)
        try:
            await self._in_thread(lambda: self._netlink.get(request))
        except NetlinkError as error:
            return error.errno != errno.ENOENT
        return True

    def connections_forgotten(self, slot: Slot) -> None:
        """From now on the table's list of who has connections can be relied on for this slot."""
        self._uncounted.discard(slot.number)

    async def _serialised(self, work: Coroutine[Any, Any, None]) -> None:
        await self._operations.run_detached(self._locked(work))

    async def _locked(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._lock:
            await work

    async def _change(self, slot: Slot, change: Callable[[Binding | None], Binding]) -> None:
        old = self._bindings.get(slot.number)
        new = change(old)
        if old == new:
            return
        requests = self._addition(new) if old is None else self._difference(old, new)
        await self._commit(requests, {**self._bindings, slot.number: new})

    async def _remove(self, numbers: set[int]) -> None:
        gone = [binding for number, binding in self._bindings.items() if number in numbers]
        wanted = {number: binding for number, binding in self._bindings.items() if number not in numbers}
        await self._commit((request for binding in gone for request in self._removal(binding)), wanted)

    async def _commit(self, requests: Iterable[Request], wanted: dict[int, Binding]) -> None:
        try:
            # Making the messages of a long list takes milliseconds: that too belongs into the thread.
            await self._in_thread(lambda: self._netlink.commit(list(requests)))
        except NetlinkError as error:
            log.warning("a change of the packet filter failed; writing all of it again", error=error.message)
            await self._write(wanted)
        self._bindings = wanted

    @property
    def _changed_by_others(self) -> bool:
        """Right only while no write of ours goes on."""
        return self._lost or self._seen > self._own

    async def _repair(self) -> None:
        if not self._changed_by_others:
            return
        log.warning("another program changed our packet filter table; writing it again")
        await self._write(self._bindings)
        self._lost = False
        self._own = self._seen + 1  # what was written now is announced yet

    async def _write(self, wanted: dict[int, Binding]) -> None:
        await _run_nft(await self._in_thread(lambda: render(self._instance, self._config, wanted.values())))
        self._own += 1
        self._bindings = wanted
        self._uncounted = set(wanted)

    async def _delete(self) -> None:
        await _run_nft(render_teardown(self._instance))
        self._own += 1
        self._bindings = {}

    async def _announced(self) -> None:
        """Wait for the announcement of a transaction on the table.

        What goes through our own connection is not announced to us, what `nft` does for us is: it is counted, because
        somebody else's transaction may come right behind it.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._announcements, _ANNOUNCEMENT)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._lost, self._touched = True, False
                return
            before = self._seen
            for message in parse_messages(data):
                self._touched |= changed_table(message) == self._table.name
                if ends_transaction(message):
                    self._seen += self._touched
                    self._touched = False
            if self._seen > before:
                return

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _addition(self, new: Binding) -> Iterator[Request]:
        key = interface_key(new.slot.interface)
        yield self._table.add_element(SOURCES, key + new.slot.address.packed)
        if new.cut:
            yield self._table.add_element(CUT, key)
        yield from self._policy(new)

    def _difference(self, old: Binding, new: Binding) -> Iterator[Request]:
        key = interface_key(new.slot.interface)
        if new.cut and not old.cut:
            yield self._table.add_element(CUT, key)
        if new.policy != old.policy:
            yield self._table.delete_element(EGRESS, key)
            yield from self._drop_chain(old, keep=new.policy.plain is None)
            yield from self._policy(new)
        if old.cut and not new.cut:
            yield self._table.delete_element(CUT, key)

    def _removal(self, old: Binding) -> Iterator[Request]:
        key = interface_key(old.slot.interface)
        yield self._table.delete_element(SOURCES, key + old.slot.address.packed)
        yield self._table.delete_element(EGRESS, key)
        yield from self._drop_chain(old, keep=False)
        if old.cut:
            yield self._table.delete_element(CUT, key)

    def _policy(self, binding: Binding) -> Iterator[Request]:
        """The chain that a policy with lists needs, and the element that leads to it."""
        policy, chain = binding.policy, chain_name(binding.slot)
        plain = policy.plain
        verdict = {True: ACCEPT, False: goto(REFUSE), None: goto(chain)}[plain]
        if plain is None:
            yield self._table.add_chain(chain)
            yield from self._rules(chain, policy)
        yield self._table.add_element(EGRESS, interface_key(binding.slot.interface), verdict)

    def _rules(self, chain: str, policy: EgressPolicy) -> Iterator[Request]:
        default: Verdict = ACCEPT if policy.allow_internet else goto(REFUSE)
        if policy.allow:
            yield from self._table.match_destination(chain, to_ranges(policy.allow), ACCEPT, set_id=1)
        if policy.allow_internet and policy.deny:
            yield from self._table.match_destination(chain, to_ranges(policy.deny), goto(REFUSE), set_id=2)
        yield self._table.always(chain, default)

    def _drop_chain(self, binding: Binding, *, keep: bool) -> Iterator[Request]:
        """Empty the chain that a binding has, if it has one, and delete it unless it is needed again."""
        if binding.policy.plain is None:
            yield self._table.flush_chain(chain_name(binding.slot))
            if not keep:
                yield self._table.delete_chain(chain_name(binding.slot))


def _known(slot: Slot, binding: Binding | None) -> Binding:
    if binding is None:
        raise SlotNotFound(f"slot {slot.number} is not bound in the packet filter")
    return binding


async def _run_nft(text: str) -> None:
    """Apply nftables text in one transaction.

    Raises FirewallError with what nft says, and RequirementMissing when there is no nft.
    """
    try:
        result = await run_command(
            ["nft", "-f", "-"], stdin=text.encode(), timeout=_NFT_TIMEOUT, env={"PATH": _NFT_PATH}
        )
        result.check()
    except CommandFailed as error:
        if error.result is None:
            raise RequirementMissing(
                f"{error.message}; install the package nftables (`apt-get install nftables`)"
            ) from error
        raise FirewallError(f"the packet filter cannot be set up: {error.message}") from error
    except CommandTimeout as error:
        raise FirewallError(f"the packet filter cannot be set up: {error.message}") from error
