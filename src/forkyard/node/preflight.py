"""What must be there before a server starts, each with a sentence that says what to do."""

from __future__ import annotations

import json

from forkyard.base.errors import ForkyardError
from forkyard.node.settings import Settings
from forkyard.templates.base_image.build import BaseImage


class NotReady(ForkyardError):
    """Something that the server needs is missing."""

    code = "not_ready"


def check_host(settings: Settings) -> None:
    """Raise NotReady for the first thing that keeps a server from starting."""
    for name in ("keeper", "envd", "edge"):
        if not (settings.binaries / name).is_file():
            raise NotReady(
                f"{settings.binaries / name} is missing; run `make bootstrap` (or set FORKYARD_BIN_DIR)"
            )


def find_image(settings: Settings) -> BaseImage:
    """The base image that `make` built. Raises NotReady."""
    path = settings.images / "base.json"
    try:
        return BaseImage(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        raise NotReady(f"{path} is missing; run `make bootstrap` (or set FORKYARD_IMAGE_DIR)") from None
