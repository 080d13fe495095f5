"""Create a sandbox from a template or snapshot."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import asdict, dataclass, field

from forkyard.base.errors import ForkyardError, InvalidInput, LimitExceeded
from forkyard.base.ids import new_sandbox_id, new_short_id
from forkyard.sandboxes.core import Core, settle
from forkyard.sandboxes.egress import egress_policy
from forkyard.sandboxes.endings import remove_behind
from forkyard.sandboxes.errors import IdempotencyMismatch, SandboxNotFound, TemplateNotFound
from forkyard.sandboxes.models import IdempotencyKey, Sandbox, Snapshot
from forkyard.sandboxes.naming import resolve_template
from forkyard.sandboxes.starting import deadline_after, start_new
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import Usage
from forkyard.sandboxes.warm import WarmPool
from forkyard.storage.dialect import to_json

MAX_PAIRS = 256
MAX_KEY = 500
MAX_TEXT = 64 << 10
"""Bytes of all metadata, and of all env vars, of one sandbox."""


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """What a client asks for."""

    template: str
    timeout_s: int = 300
    pause_on_timeout: bool = False
    pause_keeps_memory: bool = True
    auto_resume: bool = False
    secure: bool = True
    public_traffic: bool = True
    allow_internet: bool | None = None
    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    mask_host: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    env_vars: dict[str, str] = field(default_factory=dict[str, str])
    idempotency_key: str | None = None

    def hash(self) -> str:
        return hashlib.sha256(to_json(asdict(self)).encode()).hexdigest()


async def create(core: Core, pool: WarmPool, team_id: str, request: NewSandbox) -> Sandbox:
    """Create and start a sandbox.

    With an idempotency key that was used before, the same sandbox. Raises InvalidInput, TemplateNotFound,
    IdempotencyMismatch, SandboxLimit, DiskFull, and what the start raises.
    """
    _check(core, request)
    snapshot, name = await resolve_template(core, team_id, request.template)
    known = await _known(core, team_id, request)
    if known is not None:
        return known
    core.admission.check_disk()
    core.admission.check_rate(team_id, 1)
    with core.telemetry.stage("create", "total"), pool.creates.first():
        while True:
            sandbox = new_row(core, team_id, snapshot, request, template_name=name)
            token = sandbox.transition or ""
            core.owners.take(token)
            if await _insert(core, pool, sandbox, request):
                try:
                    return await start_new(core, sandbox, token, snapshot, operation="create")
                except ForkyardError as error:
                    # The files of a snapshot that is deleted go while it is being read.
                    if await core.store.is_deleted(snapshot.id):
                        raise TemplateNotFound(request.template[:200]) from error
                    raise
            known = await _known(core, team_id, request)
            if known is not None:
                return known
            # The create that had this key failed, and gave the key back: ours is the next one.


async def _insert(core: Core, pool: WarmPool, sandbox: Sandbox, request: NewSandbox) -> bool:
    """Write the record, with a warm machine if there is one. False when the idempotency key is used already."""
    key = None
    if request.idempotency_key is not None:
        key = IdempotencyKey(
            team_id=sandbox.team_id,
            key=request.idempotency_key,
            request_hash=request.hash(),
            sandbox_id=sandbox.id,
            created_at=sandbox.created_at,
        )
    # Into the record from the first moment, so that recovery knows whose machine it is.
    warm = pool.claim(sandbox.source_snapshot_id)
    sandbox.handle = warm.to_json() if warm else None
    try:
        inserted = await core.store.insert(
            [sandbox], limits=core.admission.room_for(sandbox.team_id), key=key
        )
    except LimitExceeded:
        if warm is not None:
            pool.give_back(sandbox.source_snapshot_id, warm)
        raise
    except BaseException:
        # Whether the record is there is open; if it is, nobody will start it.
        if warm is not None:
            remove_behind(core, warm)
        raise
    if warm is not None and not inserted:
        pool.give_back(sandbox.source_snapshot_id, warm)
    return inserted


def new_row(
    core: Core,
    team_id: str,
    snapshot: Snapshot,
    request: NewSandbox,
    *,
    template_name: str | None,
    parent_id: str | None = None,
) -> Sandbox:
    """The record of a sandbox about to be started, with identity and tokens of its own."""
    sandbox_id = new_sandbox_id()
    now = core.clock.now()
    return Sandbox(
        id=sandbox_id,
        team_id=team_id,
        node_id=core.node_id,
        state=State.CREATING,
        generation=snapshot.generation + 1,
        transition=new_short_id(),
        transition_at=now,
        template_id=snapshot.template_id,
        template_name=template_name,
        source_snapshot_id=snapshot.id,
        parent_id=parent_id,
        vcpus=snapshot.vcpus,
        memory_mb=snapshot.memory_mb,
        disk_mb=snapshot.disk_mb,
        created_at=now,
        started_at=now,
        end_at=deadline_after(core, request.timeout_s),
        timeout_s=request.timeout_s,
        pause_on_timeout=request.pause_on_timeout,
        pause_keeps_memory=request.pause_keeps_memory,
        paused_without_memory=False,
        auto_resume=request.auto_resume,
        envd_version=snapshot.envd_version,
        envd_token=secrets.token_hex(32) if request.secure else None,
        traffic_token=None if request.public_traffic else secrets.token_hex(32),
        public_traffic=request.public_traffic,
        allow_internet=request.allow_internet,
        allow_out=request.allow_out,
        deny_out=request.deny_out,
        mask_host=request.mask_host,
        settings=snapshot.settings,
        env_vars=request.env_vars,
        user_metadata=request.metadata,
        hostname=sandbox_id,
        boot_id=str(uuid.uuid4()),
        machine_id=uuid.uuid4().hex,
    )


def usage_of(sandbox: Sandbox, count: int = 1) -> Usage:
    return Usage(count, sandbox.vcpus * count, sandbox.memory_mb * count, sandbox.disk_mb * count)


def check_timeout(core: Core, seconds: int, field_name: str = "timeout", *, least: int = 1) -> None:
    if not least <= seconds <= core.settings.max_timeout:
        raise InvalidInput(
            f"{field_name} must be between {least} and {core.settings.max_timeout} seconds", field_name
        )


def _check(core: Core, request: NewSandbox) -> None:
    check_timeout(core, request.timeout_s)
    if not request.pause_keeps_memory and not request.pause_on_timeout:
        raise InvalidInput("autoPauseMemory: false needs autoPause", "autoPauseMemory")
    if not request.pause_keeps_memory and request.auto_resume:
        raise InvalidInput("autoPauseMemory: false cannot go with autoResume", "autoPauseMemory")
    if not request.public_traffic and not request.secure:
        raise InvalidInput(
            "network.allowPublicTraffic: false needs a secure sandbox", "network.allowPublicTraffic"
        )
    egress_policy(
        allow_out=request.allow_out, deny_out=request.deny_out, allow_internet=request.allow_internet
    )
    if any(len(key) > MAX_KEY for key in request.metadata):
        raise InvalidInput(f"metadata: a key has at most {MAX_KEY} characters", "metadata")
    for field_name, pairs in (("metadata", request.metadata), ("envVars", request.env_vars)):
        if len(pairs) > MAX_PAIRS or sum(len(k) + len(v) for k, v in pairs.items()) > MAX_TEXT:
            raise InvalidInput(
                f"{field_name}: at most {MAX_PAIRS} entries and {MAX_TEXT} characters", field_name
            )
        if any("\0" in k or "\0" in v for k, v in pairs.items()):
            raise InvalidInput(f"{field_name} must not contain NUL characters", field_name)
    if any(not k or "=" in k for k in request.env_vars):
        raise InvalidInput("envVars: a name must not be empty or contain '='", "envVars")


async def _known(core: Core, team_id: str, request: NewSandbox) -> Sandbox | None:
    if request.idempotency_key is None:
        return None
    key = await core.store.idempotent(team_id, request.idempotency_key)
    if key is None:
        return None
    if key.request_hash != request.hash():
        raise IdempotencyMismatch()
    try:
        return await settle(core, key.sandbox_id, team_id=team_id)
    except SandboxNotFound:
        # Ended since, or never started: then its create gave the key back.
        if await core.store.idempotent(team_id, request.idempotency_key) is None:
            return None
        raise
