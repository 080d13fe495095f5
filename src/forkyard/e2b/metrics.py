"""What sandboxes use, sampled every few seconds and kept for an hour."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from forkyard.base.errors import InvalidInput
from forkyard.e2b.deps import Reader, SandboxId, Service, parse_sandbox_id
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer
from forkyard.e2b.schemas.metrics import SandboxesWithMetrics, SandboxMetric
from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.samples import Sample

MAX_IDS = 100

router = APIRouter(tags=["metrics"], route_class=ApiRoute, responses=ERRORS)

UnixSeconds = Annotated[int, Query(ge=0, le=2**53)]


@router.get("/sandboxes/metrics", response_model=SandboxesWithMetrics)
async def list_latest_metrics(
    principal: Reader,
    sandboxes: Service,
    sandbox_ids: Annotated[
        list[str], Query(description=f"Ids separated by commas, at most {MAX_IDS}", min_length=1)
    ],
) -> Response:
    """The newest sample of each of these sandboxes; those that are not known or not sampled yet are left out."""
    ids = parse_ids(sandbox_ids)
    samples = await sandboxes.latest_samples(principal.team_id, ids)
    return answer(SandboxesWithMetrics(sandboxes={i: metric_of(sample) for i, sample in samples.items()}))


@router.get("/sandboxes/{sandbox_id}/metrics", response_model=list[SandboxMetric])
async def list_metrics(
    sandbox_id: SandboxId,
    principal: Reader,
    sandboxes: Service,
    start: Annotated[UnixSeconds | None, Query(description="Unix time in seconds, included")] = None,
    end: Annotated[UnixSeconds | None, Query(description="Unix time in seconds, included")] = None,
) -> Response:
    """The samples of a sandbox in that time, oldest first."""
    if start is not None and end is not None and start > end:
        raise InvalidInput("start: after end", "start")
    samples = await sandboxes.samples(principal.team_id, sandbox_id)
    return answer([metric_of(sample) for sample in samples if _within(sample, start, end)])


def parse_ids(values: list[str]) -> list[str]:
    """Sandbox ids from the query. Raises InvalidInput."""
    texts = [text for value in values for text in value.split(",") if text]
    if len(texts) > MAX_IDS:
        raise InvalidInput(f"sandbox_ids: at most {MAX_IDS}", "sandbox_ids")
    try:
        return [parse_sandbox_id(text) for text in texts]
    except SandboxNotFound:
        raise InvalidInput("sandbox_ids: not an id of a sandbox", "sandbox_ids") from None


def metric_of(sample: Sample) -> SandboxMetric:
    return SandboxMetric(
        timestamp=sample.at,
        timestampUnix=int(sample.at.timestamp()),
        cpuCount=sample.cpu_count,
        cpuUsedPct=sample.cpu_used_pct,
        memUsed=sample.memory_used,
        memTotal=sample.memory_total,
        memCache=sample.memory_cache,
        diskUsed=sample.disk_used,
        diskTotal=sample.disk_total,
    )


def _within(sample: Sample, start: int | None, end: int | None) -> bool:
    second = int(sample.at.timestamp())
    return (start is None or second >= start) and (end is None or second <= end)
