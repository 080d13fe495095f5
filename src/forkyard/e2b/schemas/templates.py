"""Bodies about templates."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from forkyard.e2b.schemas.base import Omittable, ResponseBody

BuildStatus = Literal["waiting", "building", "ready", "error"]


class TemplateAliasResponse(ResponseBody):
    templateID: str
    public: bool


class TeamUser(ResponseBody):
    id: UUID
    email: str | None


class Template(ResponseBody):
    templateID: str
    buildID: UUID
    """Of the newest build."""
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    public: bool
    """Whether every team may use it."""
    aliases: list[str]
    names: list[str]
    createdAt: datetime
    updatedAt: datetime
    createdBy: TeamUser | None
    lastSpawnedAt: datetime | None
    spawnCount: int
    """Sandboxes of this team made from it, as far back as records are kept."""
    buildCount: int
    envdVersion: str
    buildStatus: BuildStatus
    isDefault: bool
    """Whether it was shipped with the server."""


class TemplateBuild(ResponseBody):
    buildID: UUID
    status: BuildStatus
    createdAt: datetime
    updatedAt: datetime
    finishedAt: Omittable[datetime] = None
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    envdVersion: str


class TemplateWithBuilds(ResponseBody):
    templateID: str
    public: bool
    aliases: list[str]
    names: list[str]
    createdAt: datetime
    updatedAt: datetime
    lastSpawnedAt: datetime | None
    spawnCount: int
    builds: list[TemplateBuild]
    """Newest first."""
