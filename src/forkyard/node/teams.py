"""`forkyard teams`: what whoever runs the server does with teams, in its database, whether it runs or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from forkyard.auth.limits import TeamLimits
from forkyard.auth.models import Team
from forkyard.auth.service import AuthService
from forkyard.base.errors import ForkyardError, InvalidInput
from forkyard.node.settings import Settings
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database

Json = dict[str, Any]


class NoDatabase(ForkyardError):
    """There is no database yet."""

    code = "no_database"


async def create_team(settings: Settings, name: str, limits: Json) -> Json:
    """Make a team: `{team_id, name, key_id, key}`. `limits` are those of `TeamLimits`; None is left out.

    Raises TeamExists, InvalidInput, NoDatabase.
    """
    async with _service(settings) as auth:
        issued = await auth.create_team(name, _limits(limits))
    record = issued.record
    return {"team_id": record.team_id, "name": name.strip(), "key_id": record.id, "key": issued.key}


async def list_teams(settings: Settings) -> list[Json]:
    """All teams, the oldest first: `{id, name, created_at, limits}`. Raises NoDatabase."""
    async with _service(settings) as auth:
        return [_to_json(team) for team in await auth.list_teams()]


async def limit_team(settings: Settings, name: str, limits: Json) -> Json:
    """Give a team these limits, in place of those it has. Raises TeamNotFound, NoDatabase."""
    async with _service(settings) as auth:
        return _to_json(await auth.limit_team(name, _limits(limits)))


def _limits(given: Json) -> TeamLimits:
    try:
        return TeamLimits(**given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{field}: {first['msg']}", field) from None


def _to_json(team: Team) -> Json:
    limits = TeamLimits.from_json(team.limits).model_dump()
    return {"id": team.id, "name": team.name, "created_at": team.created_at.isoformat(), "limits": limits}


@asynccontextmanager
async def _service(settings: Settings) -> AsyncGenerator[AuthService]:
    url = settings.database
    if url.path is not None and not url.path.exists():
        raise NoDatabase(f"{url.path} is not there: start the server once, or name its --data-dir")
    await migrate(url)
    database = Database(url)
    try:
        yield AuthService(database)
    finally:
        await database.close()
