"""Shipped templates: an image booted once, captured, and given a name that every team sees."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.ids import new_short_id, new_template_id, random_text
from forkyard.guest.client import GuestIdentity
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import MachineSpec, Shape, SnapshotUnusable
from forkyard.sandboxes.endings import purge_snapshots, remove_machine
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.sandboxes.models import Durability, Snapshot, SnapshotKind, SnapshotState
from forkyard.sandboxes.naming import DEFAULT_TAG
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.warm import DEFAULT_EGRESS

crash_points("template.booted", "template.checkpointed", "template.registered")

log = structlog.stdlib.get_logger(__name__)

EVERY_TEAM = ""


@dataclass(frozen=True, slots=True)
class ShippedTemplate:
    """What a template is made of."""

    name: str
    image_sha256: str
    vcpus: int
    memory_mb: int
    disk_mb: int
    user: str = "user"
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])


async def ensure_template(core: Core, template: ShippedTemplate) -> Snapshot:
    """The template's snapshot, made if there is none of this image, envd and runtime that can be restored here.

    After an upgrade the name moves to the new one when it is ready; what was paused before keeps its own snapshot.
    """
    shape = core.driver.shape(
        image=template.image_sha256,
        vcpus=template.vcpus,
        memory_mb=template.memory_mb,
        disk_mb=template.disk_mb,
    )
    present = await core.store.find_named(team_id=EVERY_TEAM, name=template.name, tag=DEFAULT_TAG)
    if present is not None and _shape_of(core, present) == shape and await _usable(core, present):
        await _drop_nameless(core)
        return present
    log.info("making template", template=template.name)
    made = await _make(core, template, shape, present.template_id if present else new_template_id())
    await core.store.set_name(
        team_id=EVERY_TEAM, name=template.name, tag=DEFAULT_TAG, snapshot_id=made.id, now=core.clock.now()
    )
    crash_point("template.registered")
    await _drop_nameless(core)
    return made


async def _drop_nameless(core: Core) -> None:
    """Give up what no name leads to: the one before an upgrade, and what a server made that died before naming it."""
    ready = await core.store.snapshots_in(core.node_id, [SnapshotState.READY])
    shipped = [s.id for s in ready if s.kind == SnapshotKind.TEMPLATE and s.team_id is None]
    names = await core.store.names_of(shipped)
    if nameless := [i for i in shipped if not names[i]]:
        await core.store.mark_deleting(nameless)
        await purge_snapshots(core)


def _shape_of(core: Core, snapshot: Snapshot) -> Shape | None:
    if snapshot.manifest is None:
        return None
    requires = Manifest.from_json(snapshot.manifest).requires
    return core.driver.spec_of(requires, name="template", egress=DEFAULT_EGRESS).shape


async def _usable(core: Core, snapshot: Snapshot) -> bool:
    """Whether it can be restored: it may be damaged, or of a host whose processor had more than this one."""
    if snapshot.manifest is None:
        return False
    manifest = Manifest.from_json(snapshot.manifest)
    try:
        await core.files.check(snapshot.id, manifest)
        await core.driver.check(core.files.directory(snapshot.id), manifest.requires, manifest.files)
    except (SnapshotDamaged, SnapshotUnusable) as error:
        log.warning("template cannot be used any more", snapshot_id=snapshot.id, reason=error.message)
        return False
    return True


async def _make(core: Core, template: ShippedTemplate, shape: Shape, template_id: str) -> Snapshot:
    name = f"template-{new_short_id()}"
    snapshot_id = random_text(20)
    try:
        handle = await core.driver.create(MachineSpec(name=name, shape=shape, egress=DEFAULT_EGRESS))
        version = await core.guests.init(
            handle.address,
            GuestIdentity(
                sandbox_id="template",
                template_id=template_id,
                generation=0,
                hostname="template",
                boot_id=str(uuid.uuid4()),
                machine_id=uuid.uuid4().hex,
                access_token=None,
                default_user=template.user,
            ),
            timeout_s=core.settings.boot_timeout,
        )
        crash_point("template.booted")
        await core.guests.rehearse(handle.address, timeout_s=core.settings.boot_timeout)
        # Nobody waits for this one, and without the template the server does not start.
        await core.guests.quiesce(handle.address, timeout_s=core.settings.boot_timeout)
        result = await core.driver.checkpoint(handle, core.files.directory(snapshot_id))
        crash_point("template.checkpointed")
        manifest = await core.files.seal(snapshot_id, core.driver.name, result)
        manifest = await core.files.make_host_safe(snapshot_id, manifest)
    except BaseException:
        await core.files.remove(snapshot_id)
        raise
    finally:
        await remove_machine(core, name)
    snapshot = Snapshot(
        id=snapshot_id,
        team_id=None,
        node_id=core.node_id,
        kind=SnapshotKind.TEMPLATE,
        state=SnapshotState.READY,
        durability=Durability.HOST,
        template_id=template_id,
        generation=0,
        vcpus=template.vcpus,
        memory_mb=template.memory_mb,
        disk_mb=template.disk_mb,
        size_bytes=manifest.size_bytes,
        envd_version=version,
        keeps_memory=True,
        settings={"env": dict(template.env), "user": template.user, "workdir": template.workdir},
        manifest=manifest.to_json(),
        created_at=core.clock.now(),
    )
    await core.store.insert_snapshot(snapshot)
    return snapshot
