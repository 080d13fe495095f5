"""From records to the bodies that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from forkyard.e2b.schemas.network import SandboxNetworkInfo
from forkyard.e2b.schemas.sandboxes import ListedSandbox, SandboxDetail, SandboxLifecycle
from forkyard.e2b.schemas.sandboxes import Sandbox as SandboxAnswer
from forkyard.e2b.schemas.snapshots import SnapshotInfo
from forkyard.sandboxes.models import DEFAULT_TAG, Sandbox, Snapshot, SnapshotName
from forkyard.sandboxes.state import State, public_state

CLIENT_ID = "forkyard"
"""E2B's id of the node, which clients do not need; a constant."""


def sandbox_answer(row: Sandbox, domain: str | None) -> SandboxAnswer:
    """What create, connect, resume and fork answer."""
    return SandboxAnswer(
        templateID=row.template_id,
        sandboxID=row.id,
        clientID=CLIENT_ID,
        envdVersion=row.envd_version,
        alias=row.template_name,
        envdAccessToken=row.envd_token,
        trafficAccessToken=row.traffic_token,
        domain=domain,
    )


def listed_sandbox(row: Sandbox) -> ListedSandbox:
    return ListedSandbox(**_listed_fields(row))


def sandbox_detail(row: Sandbox, domain: str | None, *, with_token: bool) -> SandboxDetail:
    return SandboxDetail(
        **_listed_fields(row),
        envdAccessToken=row.envd_token if with_token else None,
        allowInternetAccess=row.allow_internet,
        domain=domain,
        network=_network(row),
        lifecycle=SandboxLifecycle(
            autoResume=row.auto_resume, onTimeout="pause" if row.pause_on_timeout else "kill"
        ),
        pauseMode=_pause_mode(row),
    )


def snapshot_info(snapshot: Snapshot, names: Sequence[SnapshotName]) -> SnapshotInfo:
    """Named by what the client called it, as E2B does; by its id when nothing leads to it."""
    reference = f"{names[0].name}:{names[0].tag}" if names else f"{snapshot.id}:{DEFAULT_TAG}"
    return SnapshotInfo(snapshotID=reference, names=distinct_names(names))


def distinct_names(names: Sequence[SnapshotName]) -> list[str]:
    """Without tags, each once, in the order of their making."""
    return list(dict.fromkeys(name.name for name in names))


def _listed_fields(row: Sandbox) -> dict[str, Any]:
    return {
        "templateID": row.template_id,
        "sandboxID": row.id,
        "clientID": CLIENT_ID,
        "startedAt": row.started_at,
        "endAt": row.end_at,
        "cpuCount": row.vcpus,
        "memoryMB": row.memory_mb,
        "diskSizeMB": row.disk_mb,
        "state": public_state(row.state).value,
        "envdVersion": row.envd_version,
        "alias": row.template_name,
        "metadata": row.user_metadata,
        "unhealthyReason": row.unhealthy_reason,
    }


def _network(row: Sandbox) -> SandboxNetworkInfo | None:
    """None when the client asked for nothing."""
    if row.public_traffic and row.allow_out is None and row.deny_out is None and row.mask_host is None:
        return None
    return SandboxNetworkInfo(
        allowPublicTraffic=row.public_traffic,
        allowOut=row.allow_out,
        denyOut=row.deny_out,
        maskRequestHost=row.mask_host,
    )


def _pause_mode(row: Sandbox) -> Literal["full", "filesystem"] | None:
    if row.state not in (State.PAUSED, State.RESUMING):
        return None
    return "filesystem" if row.paused_without_memory else "full"
