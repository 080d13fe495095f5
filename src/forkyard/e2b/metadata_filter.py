"""The `metadata` query of lists.

Clients percent-encode keys and values, form-encode the pairs, and encode the result again as a query value. The
framework undoes the last of these; what is left is done here. `{"a": "b c&d"}` travels as
`metadata=a%3Db%252520c%252526d`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from forkyard.base.errors import InvalidInput

MAX_PAIRS = 256

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_metadata_filter(value: str | None) -> dict[str, str] | None:
    """The pairs that a sandbox must all have; None when nothing is asked for. Raises InvalidInput.

    `value` is the query value, decoded once.
    """
    if not value:
        return None
    pairs: dict[str, str] = {}
    for part in _decode(value).split("&"):
        key, separator, rest = part.partition("=")
        if not separator or not key:
            raise InvalidInput("metadata: not of the form key=value&key=value", "metadata")
        pairs[_decode(key)] = _decode(rest)
    if len(pairs) > MAX_PAIRS:
        raise InvalidInput(f"metadata: at most {MAX_PAIRS} pairs", "metadata")
    return pairs


def _decode(text: str) -> str:
    """As a form value: `+` is a space."""
    if _BROKEN_ESCAPE.search(text):
        raise InvalidInput("metadata: a % that is not followed by two hexadecimal digits", "metadata")
    try:
        decoded = unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeError:
        raise InvalidInput("metadata: not valid UTF-8", "metadata") from None
    if "\0" in decoded:
        raise InvalidInput("metadata: must not contain NUL characters", "metadata")
    return decoded
