"""What an operator allows a team: kept with the team, and known to this process without asking the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from forkyard.auth.models import Team
from forkyard.base.clock import Clock
from forkyard.storage.session import Database

READ_EVERY = 5.0
"""Seconds after which a change is known to every process."""

_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TeamLimits(BaseModel):
    """Limits of one team. `null`: what the server allows every team; 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sandboxes: _Count | None = None
    """Running sandboxes."""
    vcpus: _Count | None = None
    memory_mb: _Count | None = None
    disk_mb: _Count | None = None
    creates_per_second: Annotated[float, Field(ge=0, le=1e6)] | None = None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> TeamLimits:
        """What a team's column holds. Names of a later version are left alone."""
        return cls(**{name: value for name, value in (stored or {}).items() if name in cls.model_fields})

    def to_json(self) -> dict[str, Any] | None:
        return self.model_dump(exclude_none=True) or None


class LimitsByTeam:
    """The limits of the teams that have some, as they were a few seconds ago."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._limits: Mapping[str, TeamLimits] = {}

    def of(self, team_id: str) -> TeamLimits:
        return self._limits.get(team_id, TeamLimits())

    async def read(self) -> None:
        """Read them from the database. Raises DatabaseUnavailable; what was known stays then."""
        query = select(Team.id, Team.limits).where(Team.limits.is_not(None))
        async with self._database.read() as session:
            rows = (await session.execute(query)).all()
        self._limits = {row.id: TeamLimits.from_json(row.limits) for row in rows}

    async def run(self) -> None:
        """Read them again and again until cancelled."""
        while True:
            await self.read()
            await self._clock.sleep(READ_EVERY)
