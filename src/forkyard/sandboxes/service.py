"""`Sandboxes`: what the API, the CLI's server side and the agent platform call.

Every operation runs to its end even when its caller is cut off. Every method checks the team: another team's id is
SandboxNotFound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from forkyard.base.errors import InvalidInput, LimitExceeded, StorageFull
from forkyard.sandboxes import capturing, creating, endings, network, pausing, resuming
from forkyard.sandboxes.catalog import Catalog, TemplateEntry
from forkyard.sandboxes.core import Core, settle, visible
from forkyard.sandboxes.creating import NewSandbox, check_timeout
from forkyard.sandboxes.egress import egress_policy
from forkyard.sandboxes.errors import NotRunning, SandboxNotFound, SnapshotNotFound, TemplateNotFound
from forkyard.sandboxes.journal import JournalEntry
from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotName
from forkyard.sandboxes.naming import parse_reference, resolve_snapshot, resolve_template
from forkyard.sandboxes.resuming import Connected
from forkyard.sandboxes.routing import Route, RouteState, route_of
from forkyard.sandboxes.samples import Sample, Samples
from forkyard.sandboxes.starting import deadline_after
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import Cursor, SandboxFilter
from forkyard.sandboxes.warm import WarmPool

T = TypeVar("T")

MAX_PAGE = 100


class Sandboxes:
    def __init__(self, core: Core, *, pool: WarmPool, samples: Samples) -> None:
        self._core = core
        self._pool = pool
        self._samples = samples
        self._catalog = Catalog(core.store.database)

    # -- sandboxes -----------------------------------------------------------------------------------

    async def create(self, team_id: str, request: NewSandbox) -> Sandbox:
        """See `creating.create`."""
        before = self._core.clock.now()

        def made(row: Sandbox) -> None:
            if row.created_at >= before:  # else an idempotency key has found it
                self._core.audit.note(team_id, "sandbox.create", row.id, {"template": row.template_id})

        return await self._run(creating.create(self._core, self._pool, team_id, request), "create", made)

    async def get(self, team_id: str, sandbox_id: str) -> Sandbox:
        """Raises SandboxNotFound."""
        return await visible(self._core, sandbox_id, team_id)

    async def list(
        self, wanted: SandboxFilter, *, after: Cursor | None = None, limit: int = MAX_PAGE
    ) -> tuple[Sequence[Sandbox], Cursor | None]:
        """One page, and where the next one begins (None: it was the last)."""
        _check_page(limit)
        rows = await self._core.store.list(wanted, after=after, limit=limit + 1)
        page = rows[:limit]
        more = len(rows) > limit
        return page, Cursor(page[-1].started_at, page[-1].id) if more else None

    async def count(self, wanted: SandboxFilter) -> int:
        """How many there are on all pages of `list`."""
        return await self._core.store.count(wanted)

    async def kill(self, team_id: str, sandbox_id: str, *, reason: str = "killed by its owner") -> None:
        """End it for good; answers once nothing reaches it any more. Raises SandboxNotFound."""
        await self._run(
            endings.kill(self._core, sandbox_id, team_id=team_id, reason=reason),
            f"kill-{sandbox_id}",
            lambda _: self._core.audit.note(team_id, "sandbox.kill", sandbox_id),
        )

    async def pause(
        self, team_id: str, sandbox_id: str, *, keep_memory: bool = True, require_healthy: bool = False
    ) -> Sandbox:
        """See `pausing.pause`."""
        paused = await self._run(
            pausing.pause(
                self._core,
                sandbox_id,
                team_id=team_id,
                keep_memory=keep_memory,
                require_healthy=require_healthy,
            ),
            f"pause-{sandbox_id}",
            lambda _: self._core.audit.note(team_id, "sandbox.pause", sandbox_id),
        )
        if paused is None:
            raise SandboxNotFound(sandbox_id)
        return paused

    async def connect(
        self, team_id: str, sandbox_id: str, *, timeout_s: int, keep_memory: bool = True
    ) -> Connected:
        """See `resuming.connect`."""

        def done(connected: Connected) -> None:
            if connected.resumed:
                self._core.audit.note(team_id, "sandbox.resume", sandbox_id)

        return await self._run(
            resuming.connect(
                self._core, sandbox_id, team_id=team_id, timeout_s=timeout_s, keep_memory=keep_memory
            ),
            f"connect-{sandbox_id}",
            done,
        )

    async def resume(
        self, team_id: str, sandbox_id: str, *, timeout_s: int, keep_memory: bool = True
    ) -> Sandbox:
        """See `resuming.resume`."""
        return await self._run(
            resuming.resume(
                self._core, sandbox_id, team_id=team_id, timeout_s=timeout_s, keep_memory=keep_memory
            ),
            f"resume-{sandbox_id}",
            lambda _: self._core.audit.note(team_id, "sandbox.resume", sandbox_id),
        )

    async def set_timeout(self, team_id: str, sandbox_id: str, timeout_s: int) -> None:
        """Let it end `timeout_s` from now, earlier or later than before; 0 is now.

        Raises SandboxNotFound, NotRunning.
        """
        check_timeout(self._core, timeout_s, least=0)
        end_at = deadline_after(self._core, timeout_s)
        # A capture does not touch the deadline, and need not be waited for.
        states = {State.RUNNING, State.SNAPSHOTTING}
        changed = None
        while changed is None:
            row = await visible(self._core, sandbox_id, team_id)
            if row.state not in states:
                row = await settle(self._core, sandbox_id, team_id=team_id)
            if row.state not in states:
                raise NotRunning(f'Sandbox "{sandbox_id}" is paused; connect to it first')
            changed = await self._core.store.set_values(
                sandbox_id, states=states, values={"end_at": end_at, "timeout_s": max(1, timeout_s)}
            )
        self._core.deadlines.moved(end_at)

    async def refresh(self, team_id: str, sandbox_id: str, duration_s: int) -> None:
        """Let it live at least `duration_s` longer, never shorter. Raises SandboxNotFound, NotRunning."""
        if not 0 <= duration_s <= 3600:
            raise InvalidInput("duration must be between 0 and 3600 seconds", "duration")
        await visible(self._core, sandbox_id, team_id)
        row = await self._core.store.extend(
            sandbox_id, end_at=deadline_after(self._core, duration_s), timeout_s=max(1, duration_s)
        )
        if row is None:
            raise NotRunning()

    async def set_network(
        self,
        team_id: str,
        sandbox_id: str,
        *,
        allow_out: list[str] | None,
        deny_out: list[str] | None,
        allow_internet: bool | None,
    ) -> None:
        """Replace all egress rules; what is None is cleared. See `network.set_network`."""
        egress_policy(allow_out=allow_out, deny_out=deny_out, allow_internet=allow_internet)
        await self._run(
            network.set_network(
                self._core,
                sandbox_id,
                team_id=team_id,
                allow_out=allow_out,
                deny_out=deny_out,
                allow_internet=allow_internet,
            ),
            f"network-{sandbox_id}",
        )

    async def fork(
        self, team_id: str, sandbox_id: str, *, count: int = 1, timeout_s: int | None = None
    ) -> Sequence[capturing.ForkResult]:
        """See `capturing.fork`."""

        def done(results: Sequence[capturing.ForkResult]) -> None:
            children = [result.sandbox.id for result in results if result.sandbox is not None]
            self._core.audit.note(team_id, "sandbox.fork", sandbox_id, {"children": children})

        return await self._run(
            capturing.fork(self._core, sandbox_id, team_id=team_id, count=count, timeout_s=timeout_s),
            f"fork-{sandbox_id}",
            done,
        )

    async def wake(self, sandbox_id: str) -> Route | None:
        """For the data plane: the route of a sandbox that is running, or that runs once the transition in progress is
        over, or that is paused and asked to be resumed by requests. None when it will not run. Raises SandboxLimit,
        DiskFull and what a resume raises.
        """
        core = self._core
        try:
            row = await visible(core, sandbox_id, None)
            if row.state is State.SNAPSHOTTING:
                return route_of(row, RouteState.RUNNING)
            row = await settle(core, sandbox_id, team_id=None)
            if row.state is State.PAUSED:
                if not row.auto_resume:
                    return None
                timeout = max(row.timeout_s, core.settings.wake_timeout)
                row = (await self.connect(row.team_id, sandbox_id, timeout_s=timeout)).sandbox
        except SandboxNotFound:
            return None
        return route_of(row, RouteState.RUNNING)

    # -- logs and metrics ----------------------------------------------------------------------------

    async def logs(self, team_id: str, sandbox_id: str) -> Sequence[JournalEntry]:
        """What happened to it, oldest first; readable after its end too. Raises SandboxNotFound."""
        row = await self._core.store.get(sandbox_id)
        if row is None or row.team_id != team_id:
            raise SandboxNotFound(sandbox_id)
        return await self._core.journal.read(sandbox_id)

    async def samples(self, team_id: str, sandbox_id: str) -> Sequence[Sample]:
        """Samples of the last hour, oldest first. Raises SandboxNotFound."""
        await visible(self._core, sandbox_id, team_id)
        return self._samples.of(sandbox_id)

    async def latest_samples(self, team_id: str, sandbox_ids: Collection[str]) -> dict[str, Sample]:
        """The newest sample of each of these sandboxes that the team has and that was sampled."""
        mine = await self._core.store.visible_ids(team_id, sandbox_ids)
        return {i: samples[-1] for i in mine if (samples := self._samples.of(i))}

    # -- snapshots and templates ---------------------------------------------------------------------

    async def snapshot(
        self, team_id: str, sandbox_id: str, *, name: str | None = None, keep_memory: bool = True
    ) -> tuple[Snapshot, Sequence[SnapshotName]]:
        """See `capturing.snapshot`."""
        reference = parse_reference(name, "name") if name is not None else None
        snapshot = await self._run(
            capturing.snapshot(
                self._core, sandbox_id, team_id=team_id, name=reference, keep_memory=keep_memory
            ),
            f"snapshot-{sandbox_id}",
            lambda made: self._core.audit.note(team_id, "snapshot.create", made.id, {"sandbox": sandbox_id}),
        )
        return snapshot, (await self._core.store.names_of([snapshot.id]))[snapshot.id]

    async def snapshots(
        self,
        team_id: str,
        *,
        sandbox_id: str | None = None,
        name: str | None = None,
        after: Cursor | None = None,
        limit: int = MAX_PAGE,
    ) -> tuple[Sequence[tuple[Snapshot, Sequence[SnapshotName]]], Cursor | None]:
        """One page of a team's snapshots with their names, newest first. A name without a tag is for any tag."""
        _check_page(limit)
        wanted = None
        if name is not None:
            reference = parse_reference(name, "name")
            wanted = (reference.alias, reference.tag if ":" in name else None)
        rows = await self._core.store.list_snapshots(
            team_id=team_id, sandbox_id=sandbox_id, name=wanted, after=after, limit=limit + 1
        )
        page = rows[:limit]
        names = await self._core.store.names_of([row.id for row in page])
        cursor = Cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None
        return [(row, names[row.id]) for row in page], cursor

    async def delete_snapshot(self, team_id: str, reference: str) -> None:
        """Sandboxes made from it are not touched. Raises SnapshotNotFound."""
        snapshot = await resolve_snapshot(self._core, team_id, reference)
        if await self._core.store.mark_deleting([snapshot.id]) == 0:
            raise SnapshotNotFound(reference)
        self._core.audit.note(team_id, "snapshot.delete", snapshot.id)
        self._core.operations.start_logged(endings.purge_snapshots(self._core), "purge-snapshots")

    async def template(self, team_id: str, reference: str) -> Snapshot:
        """What a create of this reference would start from. Raises TemplateNotFound."""
        return (await resolve_template(self._core, team_id, reference))[0]

    async def templates(
        self, team_id: str, *, after: Cursor | None = None, limit: int = MAX_PAGE
    ) -> tuple[Sequence[TemplateEntry], Cursor | None]:
        """One page of the templates that a team sees, newest first."""
        _check_page(limit)
        entries = await self._catalog.templates(team_id, after=after, limit=limit + 1)
        page = entries[:limit]
        more = len(entries) > limit
        return page, Cursor(page[-1].created_at, page[-1].template_id) if more else None

    async def template_builds(
        self, team_id: str, template_id: str, *, after: Cursor | None = None, limit: int = MAX_PAGE
    ) -> tuple[TemplateEntry, Sequence[Snapshot], Cursor | None]:
        """A template and one page of its builds, newest first. Raises TemplateNotFound."""
        _check_page(limit)
        entry = await self._catalog.template(team_id, template_id)
        if entry is None:
            raise TemplateNotFound(template_id)
        builds = await self._catalog.builds(team_id, template_id, after=after, limit=limit + 1)
        page = builds[:limit]
        more = len(builds) > limit
        return entry, page, Cursor(page[-1].created_at, page[-1].id) if more else None

    # ------------------------------------------------------------------------------------------------

    async def _run(
        self, work: Coroutine[Any, Any, T], name: str, done: Callable[[T], None] = lambda _: None
    ) -> T:
        """To its end, and then `done`, even when the caller is cut off."""

        async def run() -> T:
            result = await work
            done(result)
            return result

        try:
            return await self._core.operations.run_detached(run(), name)
        except (LimitExceeded, StorageFull) as error:
            self._core.telemetry.refused.labels(error.code).inc()
            raise


def _check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be between 1 and {MAX_PAGE}", "limit")
