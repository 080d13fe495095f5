"""Whether the API answers."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

router = APIRouter(tags=["health"])


@router.get("/health", response_class=PlainTextResponse)
async def health() -> PlainTextResponse:
    """200 while requests are served. Needs no key."""
    return PlainTextResponse("Health check successful")
