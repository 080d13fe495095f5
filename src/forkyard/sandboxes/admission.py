"""Limits on what sandboxes may take. One check for create, resume, fork and wake-on-traffic alike.

The check runs inside the transaction that inserts or claims the sandbox, so that two requests at once cannot both
take the last place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.base.clock import Clock
from forkyard.host.disk import free_bytes
from forkyard.sandboxes.errors import DiskFull, SandboxLimit
from forkyard.sandboxes.store import NOTHING, LimitCheck, SandboxStore, Usage
from forkyard.storage.dialect import lock_name_txn


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds; 0 means no bound."""

    sandboxes: int = 0
    vcpus: int = 0
    memory_mb: int = 0
    disk_mb: int = 0
    creates_per_second: float = 0.0

    def exceeded_by(self, usage: Usage, more: Usage) -> str | None:
        """What is exceeded by both together, in words, or None."""
        checks = (
            ("running sandboxes", usage.sandboxes + more.sandboxes, self.sandboxes, ""),
            ("vCPUs", usage.vcpus + more.vcpus, self.vcpus, ""),
            ("memory", usage.memory_mb + more.memory_mb, self.memory_mb, " MiB"),
            ("disk", usage.disk_mb + more.disk_mb, self.disk_mb, " MiB"),
        )
        for what, wanted, bound, unit in checks:
            if bound and wanted > bound:
                return f"{what}: {wanted}{unit} wanted, {bound}{unit} allowed"
        return None


class TokenBucket:
    """A rate with a burst of one second's worth (at least 1)."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._burst = max(1.0, per_second)
        self._clock = clock
        self._tokens = self._burst
        self._at = clock.monotonic()

    def take(self, count: int) -> float:
        """Take `count` tokens: 0.0 when they were there, else the seconds to wait (nothing is taken then).

        More than the burst is granted when the bucket is full, and is paid back afterwards.
        """
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self.per_second)
        self._at = now
        needed = min(float(count), self._burst)
        if self._tokens >= needed:
            self._tokens -= count
            return 0.0
        return (needed - self._tokens) / self.per_second

    def give_back(self, count: int) -> None:
        """Tokens that were taken and not used."""
        self._tokens = min(self._burst, self._tokens + count)


class Admission:
    """Decides whether the node and the team have room for more."""

    def __init__(
        self,
        *,
        node_id: str,
        node: Limits,
        team: Limits,
        data_dir: Path,
        min_free_disk: int,
        clock: Clock,
        team_limits: Callable[[str], Limits] | None = None,
    ) -> None:
        """`team` bounds every team, unless `team_limits`, asked with a team's id, says otherwise."""
        self._node_id = node_id
        self._node = node
        self._team = team
        self._team_limits = team_limits
        self._data_dir = data_dir
        self._min_free_disk = min_free_disk
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def has_room(self, needed: int) -> bool:
        """Whether the disk has this many bytes above the watermark."""
        return free_bytes(self._data_dir) >= self._min_free_disk + needed

    def check_disk(self, needed: int = 0) -> None:
        """Raise DiskFull when less than the watermark (plus `needed` bytes) is free. Before anything is stopped."""
        free = free_bytes(self._data_dir)
        if free < self._min_free_disk + needed:
            wanted = f", and {needed >> 20} MiB are needed" if needed else ""
            raise DiskFull(
                f"the host has {free >> 20} MiB of disk left, keeps {self._min_free_disk >> 20} MiB free{wanted}; "
                "delete sandboxes or snapshots, or lower FORKYARD_MIN_FREE_DISK_MB"
            )

    def _limits_of(self, team_id: str) -> Limits:
        return self._team if self._team_limits is None else self._team_limits(team_id)

    def check_rate(self, team_id: str, count: int) -> None:
        """Raise SandboxLimit when the node or the team creates faster than allowed."""
        taken: list[TokenBucket] = []
        # The team's before the node's, and all or none: a team over its own limit must not use up what the others have.
        bounds = ((team_id, self._limits_of(team_id), "your team"), ("", self._node, "this server"))
        for owner, limits, words in bounds:
            if not limits.creates_per_second:
                continue
            bucket = self._buckets.get(owner)
            if bucket is None or bucket.per_second != limits.creates_per_second:
                bucket = self._buckets[owner] = TokenBucket(limits.creates_per_second, self._clock)
            wait = bucket.take(count)
            if wait > 0:
                for other in taken:
                    other.give_back(count)
                raise SandboxLimit(
                    f"{words} creates more than {limits.creates_per_second:g} sandboxes a second",
                    retry_after=wait,
                )
            taken.append(bucket)

    def room_for(self, team_id: str, more: Usage = NOTHING) -> LimitCheck:
        """The check to hand to the store with the write that takes the room; `more` is what is not written yet."""
        return _Room(self._node_id, self._node, team_id, self._limits_of(team_id), more)


class _Room(LimitCheck):
    def __init__(self, node_id: str, node: Limits, team_id: str, team: Limits, more: Usage) -> None:
        self._node_id = node_id
        self._node = node
        self._team_id = team_id
        self._team = team
        self._more = more

    async def check_txn(self, store: SandboxStore, session: AsyncSession) -> None:
        """Raise SandboxLimit when more is taken than the limits allow."""
        if self._node != Limits():
            await lock_name_txn(session, f"admission-node-{self._node_id}")
            usage = await store.usage_txn(session, node_id=self._node_id)
            _refuse("this server", self._node.exceeded_by(usage, self._more))
        if self._team != Limits():
            await lock_name_txn(session, f"admission-team-{self._team_id}")
            usage = await store.usage_txn(session, team_id=self._team_id)
            _refuse("your team", self._team.exceeded_by(usage, self._more))


def _refuse(owner: str, exceeded: str | None) -> None:
    if exceeded is not None:
        raise SandboxLimit(f"the limits of {owner} are reached ({exceeded})", retry_after=5)
