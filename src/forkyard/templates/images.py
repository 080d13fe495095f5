"""Image files of this node: one EROFS file a content, named by its own hash, shared read-only by all sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from forkyard.base.errors import NotFound


class ImageMissing(NotFound):
    """The image file is not there."""

    code = "image_missing"


class ImageStore:
    """The directory that holds them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        return self.root / f"{sha256}.erofs"

    async def install(self, source: Path, sha256: str) -> Path:
        """Bring an image file in, once; half a copy never gets the name. Raises ImageMissing."""
        target = self.path(sha256)
        if not target.exists():
            await asyncio.to_thread(_bring_in, source, target)
        return target


def _bring_in(source: Path, target: Path) -> None:
    if not source.exists():
        raise ImageMissing(f"the image file {source} is not there")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
