"""What must be there before a server starts, each with a sentence that says what to do."""

from __future__ import annotations

import json

from forkyard.base.errors import ForkyardError
from forkyard.host.checks import CheckConfig, check_host, require
from forkyard.node.settings import Settings
from forkyard.templates.base_image.build import BaseImage

PROGRAMS = ("keeper", "envd", "edge")


class NotReady(ForkyardError):
    """Something that the server needs is missing."""

    code = "not_ready"


def missing_programs(settings: Settings) -> list[str]:
    return [name for name in PROGRAMS if not (settings.binaries / name).is_file()]


async def check_start(settings: Settings, *, edge_is_up: bool) -> None:
    """Raise NotReady or RequirementMissing, with a line for each thing that keeps a server from starting."""
    missing = missing_programs(settings)
    if missing:
        raise NotReady(
            f"{', '.join(missing)} missing in {settings.binaries}; run `make bootstrap`, or set FORKYARD_BIN_DIR"
        )
    listen = None if edge_is_up else (settings.host, settings.port)
    require(await check_host(CheckConfig(slot_range=settings.subnets, listen=listen)))


def find_image(settings: Settings) -> BaseImage:
    """The base image that `make` built. Raises NotReady."""
    path = settings.images / "base.json"
    try:
        return BaseImage(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        raise NotReady(f"{path} is missing; run `make bootstrap`, or set FORKYARD_IMAGE_DIR") from None
