"""Pages: `limit` and `nextToken` in the query, `x-next-token` in the answer until the last page.

The token is base64url of `<RFC3339 time>__<id>`, with `__asc` behind it when the list goes up.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query

from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.service import MAX_PAGE
from forkyard.sandboxes.store import Cursor

NEXT_TOKEN = "x-next-token"

_MAX_TOKEN = 300
_TOKEN = re.compile(r"([0-9T:.+Z-]{20,40})__([a-z0-9]{1,40})(__asc)?")


@dataclass(frozen=True, slots=True)
class PageRequest:
    limit: int
    token: str | None

    def after(self, *, ascending: bool = False) -> Cursor | None:
        """Where the page begins; None for the first one. Raises InvalidInput, also for a token of a list that went
        the other way: it would show the same items again."""
        return decode_cursor(self.token, ascending=ascending) if self.token else None


async def page_request(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most items in the answer")] = MAX_PAGE,
    next_token: Annotated[
        str, Query(alias="nextToken", description="`x-next-token` of the page before")
    ] = "",
) -> PageRequest:
    return PageRequest(limit, next_token or None)


Page = Annotated[PageRequest, Depends(page_request)]


def encode_cursor(cursor: Cursor, *, ascending: bool = False) -> str:
    text = f"{cursor.at.astimezone(UTC).isoformat()}__{cursor.id}{'__asc' if ascending else ''}"
    return urlsafe_b64encode(text.encode()).decode()


def decode_cursor(token: str, *, ascending: bool = False) -> Cursor:
    """Raises InvalidInput."""
    try:
        if len(token) > _MAX_TOKEN:
            raise _invalid()
        text = urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)).decode("ascii")
        match = _TOKEN.fullmatch(text)
        if match is None or bool(match[3]) != ascending:
            raise _invalid()
        at = datetime.fromisoformat(match[1])
        if at.tzinfo is None:
            raise _invalid()
        return Cursor(at.astimezone(UTC), match[2])
    except (Base64Error, UnicodeError, ValueError, OverflowError):
        raise _invalid() from None


def next_headers(cursor: Cursor | None, *, ascending: bool = False) -> dict[str, str]:
    """Headers of the answer: none on the last page."""
    return {NEXT_TOKEN: encode_cursor(cursor, ascending=ascending)} if cursor is not None else {}


def _invalid() -> InvalidInput:
    return InvalidInput("nextToken: not a token of this list", "nextToken")
