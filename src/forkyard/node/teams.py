"""`forkyard teams`: what whoever runs the server does with teams, in its database, whether it runs or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from forkyard.auth.limits import TeamLimits
from forkyard.auth.models import Team
from forkyard.auth.service import AuthService, IssuedKey
from forkyard.base.errors import ForkyardError
from forkyard.node.settings import Settings
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database


class NoDatabase(ForkyardError):
    """There is no database yet."""

    code = "no_database"


async def create_team(settings: Settings, name: str, limits: TeamLimits) -> IssuedKey:
    """Make a team with its first key. Raises TeamExists, InvalidInput, NoDatabase."""
    async with _service(settings) as auth:
        return await auth.create_team(name, limits)


async def list_teams(settings: Settings) -> Sequence[Team]:
    """All teams, the oldest first. Raises NoDatabase."""
    async with _service(settings) as auth:
        return await auth.list_teams()


async def limit_team(settings: Settings, name: str, limits: TeamLimits) -> Team:
    """Give a team these limits, in place of those it has. Raises TeamNotFound, NoDatabase."""
    async with _service(settings) as auth:
        return await auth.limit_team(name, limits)


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
