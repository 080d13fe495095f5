"""What must be there before a server starts, each with a sentence that says what to do."""

from __future__ import annotations

import asyncio
import json

from forkyard.base.errors import ForkyardError
from forkyard.host.checks import CheckConfig, CheckResult, Status, check_host, require
from forkyard.node.certificate import certificate_problem
from forkyard.node.edge_process import RunningEdge, ports_to_take
from forkyard.node.settings import Settings
from forkyard.templates.base_image.build import BaseImage

PROGRAMS = ("keeper", "envd", "edge")


class NotReady(ForkyardError):
    """Something that the server needs is missing."""

    code = "not_ready"


def missing_programs(settings: Settings) -> list[str]:
    return [name for name in PROGRAMS if not (settings.binaries / name).is_file()]


async def check_start(settings: Settings, edge: RunningEdge | None) -> None:
    """Raise NotReady or RequirementMissing, with a line for each thing that keeps a server from starting.

    `edge` is the one of this data directory that runs already.
    """
    missing = missing_programs(settings)
    if missing:
        raise NotReady(
            f"{', '.join(missing)} missing in {settings.binaries}; run `make bootstrap`, or set FORKYARD_BIN_DIR"
        )
    certificate = await check_certificate(settings)
    require([*([certificate] if certificate else []), *await check_machine(settings, edge)])


async def check_machine(settings: Settings, edge: RunningEdge | None) -> list[CheckResult]:
    """What the host must have for these settings."""
    return await check_host(CheckConfig(slot_range=settings.subnets, listen=ports_to_take(settings, edge)))


async def check_certificate(settings: Settings) -> CheckResult | None:
    """Whether SDKs can use the certificate; None when there is none."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    problem = await asyncio.to_thread(
        certificate_problem, settings.tls_cert, settings.tls_key, settings.domain
    )
    if problem is None:
        return CheckResult("certificate", Status.OK, f"{settings.tls_cert} is for *.{settings.domain}")
    return CheckResult(
        "certificate",
        Status.FAILED,
        problem,
        f"SDKs reach the API at api.{settings.domain} and sandboxes at names beside it, by TLS",
        f"give --tls-cert and --tls-key a valid certificate for *.{settings.domain}, and its key without a password",
    )


def find_image(settings: Settings) -> BaseImage:
    """The base image that `make` built. Raises NotReady."""
    path = settings.images / "base.json"
    try:
        return BaseImage(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        raise NotReady(f"{path} is missing; run `make bootstrap`, or set FORKYARD_IMAGE_DIR") from None
