"""The body of every answer that is not a success."""

from __future__ import annotations

from forkyard.e2b.schemas.base import Omittable, ResponseBody


class Error(ResponseBody):
    code: int
    """The HTTP status again: SDKs read it here."""
    message: str
    error_code: Omittable[str] = None
    """Stable and machine readable."""
