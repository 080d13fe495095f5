"""JSON bodies about teams and API keys."""

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from forkyard.auth.limits import TeamLimits
from forkyard.auth.roles import Role, Scope


class NewApiKey(BaseModel):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Role = Role.MEMBER
    expires_at: AwareDatetime | None = None
    """None: never."""


class ApiKeyInfo(BaseModel):
    """A key, without the key itself."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True)

    id: str
    name: str
    role: Role
    prefix: str
    suffix: str
    """Beginning and end of the key, to tell it from others."""
    created_by: str
    """Id of the key that made it, or `operator`."""
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """Not later than a minute behind."""


class CreatedApiKey(ApiKeyInfo):
    """A new key. `key` is shown this once."""

    key: str


class TeamInfo(BaseModel):
    """The team of the key that asks, and what the key may do."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    created_at: datetime
    limits: TeamLimits
    key_id: str
    role: Role
    scopes: list[Scope]
