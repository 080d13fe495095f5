"""One server: its parts, how they start, and how they stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from forkyard.auth.service import AuthService
from forkyard.auth.trail import AuditTrail
from forkyard.base.clock import Clock, SystemClock
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.tasks import Operations, Supervisor
from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.driver import GvisorDriver
from forkyard.guest.client import GuestClient
from forkyard.host.disk import write_atomically
from forkyard.host.instance import Instance
from forkyard.host.remains import find_remains
from forkyard.node.api import ApiServer, make_app
from forkyard.node.edge_client import EdgeClient
from forkyard.node.edge_supervisor import EdgeSupervisor
from forkyard.node.events import MachineEvents
from forkyard.node.log_files import LogFiles
from forkyard.node.loop_lag import LoopLag
from forkyard.node.memory_kills import MemoryKillLog
from forkyard.node.pressure import MemoryPressure
from forkyard.node.readiness import Readiness
from forkyard.node.reconcile import Reconciler
from forkyard.node.routes import EdgeRoutes
from forkyard.node.settings import Settings
from forkyard.sandboxes.admission import Admission, Limits
from forkyard.sandboxes.changes import Changes
from forkyard.sandboxes.core import Core, CoreSettings
from forkyard.sandboxes.endings import kill
from forkyard.sandboxes.expiry import Expiry
from forkyard.sandboxes.journal import Journal
from forkyard.sandboxes.recovery import recover
from forkyard.sandboxes.samples import Samples
from forkyard.sandboxes.scrubbing import Scrub
from forkyard.sandboxes.service import Sandboxes
from forkyard.sandboxes.snapshots import SnapshotFiles
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import SandboxStore
from forkyard.sandboxes.telemetry import Telemetry
from forkyard.sandboxes.warm import WarmPool
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database
from forkyard.templates.base_image.build import BaseImage
from forkyard.templates.images import ImageStore
from forkyard.templates.shipped import ShippedTemplate, ensure_template

log = get_logger(__name__)

Progress = Callable[[str], None]

DRAIN_S = 20.0
"""How long a clean stop waits for operations in progress."""


class Server:
    """`start`, then `run` until a signal, then `stop`. Made for one event loop."""

    def __init__(self, settings: Settings, instance: Instance, clock: Clock | None = None) -> None:
        self.settings = settings
        self._instance = instance
        self._clock = clock or SystemClock()
        self._registry = CollectorRegistry()
        self._readiness = Readiness("database", "driver", "edge", "template")
        self._stack = AsyncExitStack()
        self._recovering = False
        self._driver_is_open = False
        self.nothing_runs = False
        """After a stop, or a start that did not succeed: nothing of this instance runs any more."""
        self._operations = Operations()
        self._database = Database(settings.database)
        self._auth = AuthService(self._database, self._clock)
        self._edge_client = EdgeClient(settings.edge_socket)
        self._routes = EdgeRoutes(self._edge_client, self._clock)
        self._edge = EdgeSupervisor(
            settings,
            settings.binaries / "edge",
            self._edge_client,
            self._routes,
            self._readiness,
            self._clock,
            cgroup=f"forkyard-{instance.id}-edge",
        )
        self._images = ImageStore(settings.node_dir / "images")
        self._driver = GvisorDriver(_gvisor_config(settings, instance.id), self._clock)
        self._guests = GuestClient(self._clock)
        self._core = self._make_core()
        self._pool = WarmPool(self._core)
        self._expiry = Expiry(self._core)
        self._samples = Samples(self._core)
        self._reconciler = Reconciler(self._core, self._pool)
        self.sandboxes = Sandboxes(self._core, pool=self._pool, samples=self._samples)
        self._loops = Supervisor(self._clock)
        self._api = ApiServer(
            make_app(
                sandboxes=self.sandboxes,
                auth=self._auth,
                registry=self._registry,
                edge=self._edge_client,
                readiness=self._readiness,
                public_domain=settings.sdk_domain,
            ),
            settings.api_socket,
        )

    async def start(self, image: BaseImage, progress: Progress) -> None:
        """Everything up to the point where clients are served.

        If this raises or is cancelled, what was started is stopped again; sandboxes that ran before go on.
        """
        try:
            await self._start(image, progress)
        except BaseException:
            await self._take_back()
            raise

    async def _take_back(self) -> None:
        await self._loops.stop()
        await self._operations.drain(DRAIN_S)
        if self._recovering and await self._is_empty():
            await self._edge.shutdown()
        await self._stack.aclose()
        self.nothing_runs = not await _has_remains(self._instance.id)

    async def _is_empty(self) -> bool:
        """Whether neither database nor driver knows of anything here that runs; False when they cannot tell."""
        try:
            rows = await self._core.store.of_node(self._core.node_id)
            machines = await self._driver.list_handles()
        except ForkyardError as error:
            log.warning("it cannot be told what runs; it is left as it is", error=error.message)
            return False
        return not machines and all(row.state is State.PAUSED for row in rows)

    async def _whole(self, step: Coroutine[Any, Any, object]) -> None:
        """Wait for a step that goes on to its end when we are cancelled: half of it could not be taken back."""
        task = asyncio.create_task(step)
        self._stack.push_async_callback(asyncio.wait, [task])
        await asyncio.shield(task)

    async def _start(self, image: BaseImage, progress: Progress) -> None:
        settings = self.settings
        for directory in (settings.run_dir, settings.log_dir, settings.snapshot_dir, settings.journal_dir):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        progress("database")
        self._stack.push_async_callback(self._database.close)
        await self._whole(migrate(self._database.url))
        await self._auth.bootstrap(self._save_key)
        await self._auth.limits.read()
        self._readiness.done("database")
        self._readiness.probe("database", self._database.ping)
        progress("driver")
        await self._whole(self._images.install(settings.images / image.image, image.sha256))
        await self._guests.open()
        self._stack.push_async_callback(self._guests.close)
        self._stack.push_async_callback(self._close_driver)
        await self._whole(self._open_driver())
        self._readiness.done("driver")
        self._readiness.probe("driver", self._driver.ping)
        progress("recovery")
        await self._edge_client.open()
        self._stack.push_async_callback(self._edge_client.close)
        self._recovering = True
        await recover(self._core, self._edge.attach)
        self._stack.push_async_callback(self._api.stop)
        await self._api.start()
        progress("template")
        await self._make_template(image)
        self._readiness.done("template")
        self._start_loops()

    async def _open_driver(self) -> None:
        await self._driver.open()
        self._driver_is_open = True

    async def _close_driver(self) -> None:
        if self._driver_is_open:  # Half open it does not know what runs, and would take it for nothing.
            await self._driver.close()

    async def end_all(self) -> int:
        """End everything that runs, without serving; answers how many sandboxes that were."""
        settings = self.settings
        if settings.database.path is not None and not settings.database.path.exists():
            return 0
        await migrate(self._database.url)
        await self._edge_client.open()
        await self._guests.open()
        await self._driver.open()
        ended = 0
        for row in await self._core.store.of_node(self._core.node_id):
            if row.state is not State.PAUSED:
                ended += 1
        await recover(self._core)
        for row in await self._core.store.running(self._core.node_id):
            await kill(self._core, row.id, team_id=None, reason="the server was taken down")
        await self._operations.drain(DRAIN_S)
        await self._edge.shutdown()
        await self._driver.close()
        await self._guests.close()
        await self._edge_client.close()
        await self._database.close()
        return ended

    async def stop(self) -> int:
        """Stop cleanly; answers how many sandboxes run on. With none left, edge and driver end too."""
        await self._api.stop()
        await self._loops.stop()
        await self._pool.drain()
        if not await self._operations.drain(DRAIN_S):
            log.warning("operations are still in progress; the next start takes them up")
        try:
            await self._auth.usage.flush()
            await self._core.audit.flush()
        except ForkyardError as error:
            log.error("what is written behind requests is lost", error=error.message)
        running = len(await self._core.store.running(self._core.node_id))
        self.nothing_runs = running == 0
        if self.nothing_runs:
            await self._edge.shutdown()
        await self._stack.aclose()
        return running

    # ------------------------------------------------------------------------------------------------

    def _make_core(self) -> Core:
        settings = self.settings
        return Core(
            node_id=self._instance.id,
            store=SandboxStore(self._database),
            driver=self._driver,
            routes=self._routes,
            guests=self._guests,
            files=SnapshotFiles(settings.snapshot_dir),
            admission=Admission(
                node_id=self._instance.id,
                node=_node_limits(settings),
                team=_team_limits(settings),
                data_dir=settings.data_dir,
                min_free_disk=settings.min_free_disk_mb << 20,
                clock=self._clock,
                team_limits=self._limits_of_team,
            ),
            journal=Journal(settings.journal_dir, self._clock),
            audit=AuditTrail(self._database, self._clock),
            telemetry=Telemetry(self._registry),
            clock=self._clock,
            changes=Changes(),
            operations=self._operations,
            settings=CoreSettings(fork_parallelism=max(2, os.cpu_count() or 2)),
        )

    def _limits_of_team(self, team_id: str) -> Limits:
        """What the server allows every team, but for what is set for this one."""
        return replace(
            _team_limits(self.settings), **self._auth.limits.of(team_id).model_dump(exclude_none=True)
        )

    async def _make_template(self, image: BaseImage) -> None:
        settings = self.settings
        snapshot = await ensure_template(
            self._core,
            ShippedTemplate(
                name=image.name,
                image_sha256=image.sha256,
                vcpus=settings.template_cpus,
                memory_mb=settings.template_memory_mb,
                disk_mb=settings.template_disk_mb,
                user=image.user,
                workdir=image.workdir,
                env=image.env,
            ),
        )
        self._pool.target(snapshot, settings.warm_pool)

    def _start_loops(self) -> None:
        kills = MemoryKillLog(self._core, self._guests, self._samples)
        events = MachineEvents(self._core, self._pool, kills.watch)
        self._loops.start("events", events.run)
        self._loops.start("memory-kills", kills.run)
        self._loops.start("edge", self._edge.run)
        self._loops.start("expiry", self._expiry.run)
        self._loops.start("warm-pool", self._pool.run)
        self._loops.start("pressure", MemoryPressure([self._pool.hold, self._driver.hold], self._clock).run)
        self._loops.start("samples", self._samples.run)
        self._loops.start("reconcile", self._reconciler.run)
        self._loops.start(
            "log-files", LogFiles(self.settings.log_dir, self.settings.run_dir, self._clock).run
        )
        self._loops.start("scrub", Scrub(self._core).run)
        self._loops.start("key-usage", self._auth.usage.run)
        self._loops.start("audit", self._core.audit.run)
        self._loops.start("team-limits", self._auth.limits.run)
        self._loops.start("loop-lag", LoopLag(self._registry).run)

    async def _save_key(self, key: str) -> None:
        await asyncio.to_thread(write_atomically, self.settings.api_key_file, f"{key}\n".encode(), mode=0o600)


async def _has_remains(instance: str) -> bool:
    """Whether anything of this instance is on the host; True when it cannot be told."""
    try:
        return any(remains.found for remains in await find_remains() if remains.instance == instance)
    except (ForkyardError, OSError) as error:
        log.warning("it cannot be told what is left on the host", error=str(error))
        return True


def _node_limits(settings: Settings) -> Limits:
    return Limits(
        settings.max_sandboxes,
        settings.max_vcpus,
        settings.max_memory_mb,
        settings.max_disk_mb,
        settings.max_creates_per_second,
    )


def _team_limits(settings: Settings) -> Limits:
    return Limits(
        settings.team_max_sandboxes,
        settings.team_max_vcpus,
        settings.team_max_memory_mb,
        settings.team_max_disk_mb,
        settings.team_max_creates_per_second,
    )


def _gvisor_config(settings: Settings, instance: str) -> GvisorConfig:
    return GvisorConfig(
        instance=instance,
        data_dir=settings.data_dir,
        node_dir=settings.node_dir,
        run_dir=settings.run_dir,
        log_dir=settings.log_dir,
        binaries=settings.binaries,
        subnets=settings.subnets,
        internal_allowed=tuple(settings.internal_allowed),
        empty_machines=settings.empty_pool,
        keeper=settings.keeper,
    )
