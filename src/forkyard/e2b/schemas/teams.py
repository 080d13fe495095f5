"""Bodies about teams."""

from __future__ import annotations

from forkyard.e2b.schemas.base import ResponseBody


class Team(ResponseBody):
    teamID: str
    name: str
    apiKey: str
    """Always empty: keys are shown once, when they are made."""
    isDefault: bool
