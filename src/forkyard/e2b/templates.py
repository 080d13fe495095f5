"""Templates: find, list, delete. Deleting is the same for snapshots, which are used like templates."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from forkyard.auth.principal import Principal
from forkyard.auth.roles import Scope
from forkyard.base.errors import NotFound
from forkyard.e2b.deps import Anyone, Service, TemplateReader
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.pagination import Page, next_headers
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer, no_content
from forkyard.e2b.schemas.templates import Template, TemplateAliasResponse, TemplateBuild, TemplateWithBuilds
from forkyard.e2b.views import distinct_names
from forkyard.sandboxes.catalog import TemplateEntry
from forkyard.sandboxes.errors import SnapshotNotFound, TemplateNotFound
from forkyard.sandboxes.models import Snapshot, SnapshotKind
from forkyard.sandboxes.service import Sandboxes
from forkyard.sandboxes.store import Cursor

router = APIRouter(tags=["templates"], route_class=ApiRoute, responses=ERRORS)

_BUILD_IDS = uuid.UUID("6e1f0c52-54f5-4b0e-9a3b-0c6f0f3f2f55")

# `:path`, because names may hold a slash (`team/name:tag`), which clients send as %2F.
TemplateReference = Annotated[str, Path(max_length=500, description="Id or name, optionally `:tag`")]
TeamQuery = Annotated[str, Query(alias="teamID", description="Only the team of the key is accepted")]


async def _own_team(principal: TemplateReader, team_id: TeamQuery = "") -> Principal:
    if team_id not in ("", principal.team_id):
        raise NotFound("The team doesn't exist or you don't have access to it")
    return principal


OwnTeam = Annotated[Principal, Depends(_own_team)]


@router.get("/templates/aliases/{alias:path}", response_model=TemplateAliasResponse)
async def find_template(alias: TemplateReference, principal: TemplateReader, sandboxes: Service) -> Response:
    """Tell whether a create of this name would find something, and what."""
    found = await sandboxes.template(principal.team_id, alias)
    template_id = found.template_id if found.kind == SnapshotKind.TEMPLATE else found.id
    return answer(TemplateAliasResponse(templateID=template_id, public=found.team_id is None))


@router.get("/v2/templates", response_model=list[Template])
async def list_templates(principal: OwnTeam, sandboxes: Service, page: Page) -> Response:
    """List the templates of the team and those shipped with the server, newest first."""
    entries, following = await sandboxes.templates(principal.team_id, after=page.after(), limit=page.limit)
    return answer([template_view(entry) for entry in entries], headers=next_headers(following))


@router.get("/templates", response_model=list[Template], deprecated=True)
async def list_templates_v1(principal: OwnTeam, sandboxes: Service) -> Response:
    """List all templates of the team and those shipped with the server. Use version 2, which has pages."""
    listed: list[Template] = []
    after: Cursor | None = None
    while True:
        entries, after = await sandboxes.templates(principal.team_id, after=after)
        listed.extend(template_view(entry) for entry in entries)
        if after is None:
            return answer(listed)


@router.get("/templates/{template_id:path}", response_model=TemplateWithBuilds)
async def get_template(
    template_id: TemplateReference, principal: TemplateReader, sandboxes: Service, page: Page
) -> Response:
    """Look at a template and its builds, newest first."""
    found = await sandboxes.template(principal.team_id, template_id)
    if found.kind != SnapshotKind.TEMPLATE:
        raise TemplateNotFound(template_id)
    entry, builds, following = await sandboxes.template_builds(
        principal.team_id, found.template_id, after=page.after(), limit=page.limit
    )
    return answer(_with_builds(entry, [build_view(b) for b in builds]), headers=next_headers(following))


@router.delete("/templates/{template_id:path}", status_code=204)
async def delete_template(template_id: TemplateReference, principal: Anyone, sandboxes: Service) -> Response:
    """Delete a template or snapshot. Sandboxes made from it are not touched."""
    await _require_delete(sandboxes, principal, template_id)
    await sandboxes.delete_snapshot(principal.team_id, template_id)
    return no_content()


async def _require_delete(sandboxes: Sandboxes, principal: Principal, reference: str) -> None:
    """A key that may only run sandboxes may delete the snapshots it takes, but no templates."""
    try:
        found = await sandboxes.template(principal.team_id, reference)
    except TemplateNotFound:
        principal.require(Scope.SANDBOXES_WRITE)
        raise SnapshotNotFound(reference[:200]) from None
    template = found.kind == SnapshotKind.TEMPLATE
    principal.require(Scope.TEMPLATES_WRITE if template else Scope.SANDBOXES_WRITE)


def build_id_of(snapshot: Snapshot) -> uuid.UUID:
    """SDKs want a UUID where we have the id of the snapshot that a build made."""
    return uuid.uuid5(_BUILD_IDS, snapshot.id)


def template_view(entry: TemplateEntry) -> Template:
    newest = entry.newest
    names = distinct_names(entry.names)
    return Template(
        templateID=entry.template_id,
        buildID=build_id_of(newest),
        cpuCount=newest.vcpus,
        memoryMB=newest.memory_mb,
        diskSizeMB=newest.disk_mb,
        public=newest.team_id is None,
        aliases=names,
        names=names,
        createdAt=entry.created_at,
        updatedAt=newest.created_at,
        createdBy=None,
        lastSpawnedAt=entry.last_spawned_at,
        spawnCount=entry.spawned,
        buildCount=entry.builds,
        envdVersion=newest.envd_version,
        buildStatus="ready",
        isDefault=newest.team_id is None,
    )


def build_view(snapshot: Snapshot) -> TemplateBuild:
    return TemplateBuild(
        buildID=build_id_of(snapshot),
        status="ready",
        createdAt=snapshot.created_at,
        updatedAt=snapshot.created_at,
        finishedAt=snapshot.created_at,
        cpuCount=snapshot.vcpus,
        memoryMB=snapshot.memory_mb,
        diskSizeMB=snapshot.disk_mb,
        envdVersion=snapshot.envd_version,
    )


def _with_builds(entry: TemplateEntry, builds: list[TemplateBuild]) -> TemplateWithBuilds:
    view = template_view(entry)
    return TemplateWithBuilds(
        templateID=view.templateID,
        public=view.public,
        aliases=view.aliases,
        names=view.names,
        createdAt=view.createdAt,
        updatedAt=view.updatedAt,
        lastSpawnedAt=view.lastSpawnedAt,
        spawnCount=view.spawnCount,
        builds=builds,
    )
