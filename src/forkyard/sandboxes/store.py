"""Compare-and-set writes of sandboxes.

Functions ending in `_txn` run inside the caller's transaction. No method holds a transaction over anything
but its own statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.sandboxes.models import IdempotencyKey, Sandbox, SandboxTag, Snapshot, SnapshotState
from forkyard.sandboxes.queries import NOTHING, Cursor, SandboxFilter, SandboxQueries, Usage
from forkyard.sandboxes.snapshot_store import SnapshotStore
from forkyard.sandboxes.state import STEADY, State, may_follow

__all__ = ["NOTHING", "Cursor", "LimitCheck", "SandboxFilter", "SandboxStore", "Usage"]


_OF_TOKEN = (
    update(Sandbox)
    .where(Sandbox.id == bindparam("sandbox_id"), Sandbox.transition == bindparam("token"))
    .returning(Sandbox)
    .execution_options(synchronize_session=False)
)


class SandboxStore(SandboxQueries, SnapshotStore):
    """Everything the core stores."""

    async def insert(
        self,
        sandboxes: Sequence[Sandbox],
        *,
        limits: LimitCheck | None = None,
        key: IdempotencyKey | None = None,
    ) -> bool:
        """Write new sandboxes (state `creating`) in one transaction, if `limits` allows it.

        Answers False, and has written nothing, when the idempotency key exists already (see `idempotent`).
        """
        try:
            async with self._write() as session:
                if key is not None:
                    if await session.get(IdempotencyKey, (key.team_id, key.key)) is not None:
                        return False
                    session.add(key)
                session.add_all(sandboxes)
                await session.flush()
                session.add_all(
                    SandboxTag(sandbox_id=s.id, key=k, value=v)
                    for s in sandboxes
                    for k, v in s.user_metadata.items()
                )
                if limits is not None:
                    await limits.check_txn(self, session)
        except IntegrityError:
            # Two requests at once on PostgreSQL: the other one has committed the key meanwhile.
            if key is None or await self.idempotent(key.team_id, key.key) is None:
                raise
            return False
        return True

    async def begin(
        self,
        sandbox_id: str,
        *,
        allowed: Collection[State],
        to: State,
        token: str,
        now: datetime,
        intent: Mapping[str, Any] | None = None,
        expired_at: datetime | None = None,
        next_generation: bool = False,
        snapshot: Snapshot | None = None,
        limits: LimitCheck | None = None,
    ) -> Sandbox | None:
        """Claim a transition: from one of the steady `allowed` states to `to`, owned by `token`.

        None when the sandbox is not in one of them (any more). `expired_at`: only when its deadline is not later
        than that, so that an extension that came first wins. `snapshot` (state `writing`) is written in the same
        transaction: the intent to make it. `limits` are checked only when the claim succeeds: one who lost the race
        for it is to join the winner, not to be refused.
        """
        for state in allowed:
            if state not in STEADY or not may_follow(state, to):
                raise ValueError(f"no transition {state} -> {to}")
        values: dict[str, Any] = {
            "state": to,
            "transition": token,
            "transition_at": now,
            "transition_intent": dict(intent) if intent is not None else None,
        }
        if next_generation:
            values["generation"] = Sandbox.generation + 1
        if snapshot is not None:
            values["transition_snapshot_id"] = snapshot.id
        query = update(Sandbox).where(Sandbox.id == sandbox_id, Sandbox.state.in_(list(allowed)))
        if expired_at is not None:
            query = query.where(Sandbox.end_at <= expired_at)
        async with self._write() as session:
            claim = query.values(**values).returning(Sandbox).execution_options(synchronize_session=False)
            row = (await session.scalars(claim)).one_or_none()
            if row is None:
                return None
            if limits is not None:
                await limits.check_txn(self, session)
            if snapshot is not None:
                session.add(snapshot)
            return row

    async def finish(
        self,
        sandbox: Sandbox,
        *,
        token: str,
        to: State,
        values: Mapping[str, Any] | None = None,
        snapshot_ready: Mapping[str, Any] | None = None,
        snapshot_drop: Collection[str] = (),
        forget_key: bool = False,
    ) -> Sandbox | None:
        """Commit the transition that `token` owns; `sandbox` is the record as it was claimed.

        None when it is not the owner any more; then nothing was written. `snapshot_ready`: values for the snapshot the
        transition wrote, which becomes `ready`; otherwise that snapshot is marked for deletion. `snapshot_drop`:
        further snapshots to mark. `forget_key`: the idempotency key that made this sandbox may be used again.
        """
        if not may_follow(sandbox.state, to):
            raise ValueError(f"no transition {sandbox.state} -> {to}")
        written, drop = sandbox.transition_snapshot_id, set(snapshot_drop)
        if written is not None and snapshot_ready is None:
            drop.add(written)
        commit = _OF_TOKEN.values(
            state=to,
            transition=None,
            transition_at=None,
            transition_snapshot_id=None,
            transition_intent=None,
            **(values or {}),
        )
        async with self._write() as session:
            found = await session.scalars(commit, {"sandbox_id": sandbox.id, "token": token})
            row = found.one_or_none()
            if row is None:
                return None
            if written is not None and snapshot_ready is not None:
                ready = update(Snapshot).where(Snapshot.id == written)
                await session.execute(ready.values(state=SnapshotState.READY, **snapshot_ready))
            await self.mark_deleting_txn(session, drop)
            if forget_key:
                await session.execute(delete(IdempotencyKey).where(IdempotencyKey.sandbox_id == sandbox.id))
            return row

    async def take_over(self, sandbox_id: str, *, token: str, new_token: str) -> Sandbox | None:
        """Own a transition in the place of `token`; None when that did not own it (any more).

        Also tells one who does not know whether his own commit happened: this waits for a commit on its way.
        """
        query = (
            update(Sandbox)
            .where(Sandbox.id == sandbox_id, Sandbox.transition == token)
            .values(transition=new_token)
            .returning(Sandbox)
        )
        async with self._write() as session:
            return (await session.scalars(query)).one_or_none()

    async def end(self, sandbox_id: str, *, generation: int, reason: str, now: datetime) -> Sandbox | None:
        """The machine of that generation died by itself: a running sandbox is gone. None when it was not running it."""
        query = (
            update(Sandbox)
            .where(Sandbox.id == sandbox_id, Sandbox.generation == generation, Sandbox.state == State.RUNNING)
            .values(state=State.GONE, handle=None, ended_at=now, end_reason=reason[:400])
            .returning(Sandbox)
        )
        async with self._write() as session:
            return (await session.scalars(query)).one_or_none()

    async def set_values(
        self,
        sandbox_id: str,
        *,
        states: Collection[State],
        values: Mapping[str, Any],
        generation: int | None = None,
        durable: bool = False,
    ) -> Sandbox | None:
        """Change plain fields of a sandbox in one of these states (and in that generation, if one is given); None when
        it is in another.
        """
        query = update(Sandbox).where(Sandbox.id == sandbox_id, Sandbox.state.in_(list(states)))
        if generation is not None:
            query = query.where(Sandbox.generation == generation)
        async with self._write(durable) as session:
            return (await session.scalars(query.values(**values).returning(Sandbox))).one_or_none()

    async def extend(self, sandbox_id: str, *, end_at: datetime, timeout_s: int) -> Sandbox | None:
        """Move the deadline of a running sandbox later, never earlier; None when it does not run."""
        async with self._write() as session:
            row = (
                await session.scalars(
                    select(Sandbox)
                    .where(Sandbox.id == sandbox_id, Sandbox.state.in_([State.RUNNING, State.SNAPSHOTTING]))
                    .with_for_update()
                )
            ).one_or_none()
            if row is not None and row.end_at < end_at:
                row.end_at = end_at
                row.timeout_s = timeout_s
            return row

    async def check(self, limits: LimitCheck) -> None:
        """Ask beforehand; only the check in the transaction that takes the room is binding."""
        async with self._db.read() as session:
            await limits.check_txn(self, session)

    async def purge(self, sandbox_ids: Collection[str]) -> None:
        """Forget sandboxes that are gone, with their tags and the idempotency keys that made them."""
        ids = list(sandbox_ids)
        async with self._write() as session:
            await session.execute(delete(IdempotencyKey).where(IdempotencyKey.sandbox_id.in_(ids)))
            await session.execute(delete(Sandbox).where(Sandbox.id.in_(ids), Sandbox.state == State.GONE))


class LimitCheck:
    """Checked inside the transaction that has just taken what the limits bound. See `admission.py`."""

    async def check_txn(self, store: SandboxStore, session: AsyncSession) -> None:
        raise NotImplementedError
