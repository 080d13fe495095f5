"""Frames of a Connect stream: one byte of flags, four bytes of length (big endian), JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp

from forkyard.client.errors import ApiError, StreamBroken

END = 0x02
MAX_FRAME = 64 << 20
_HEAD = struct.Struct(">BI")

_STATUS = {"not_found": 404, "unauthenticated": 401, "permission_denied": 403, "invalid_argument": 400}


def frame(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return _HEAD.pack(0, len(data)) + data


async def messages(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """All messages up to the end frame. Raises ApiError with what the end frame says, StreamBroken without one."""
    try:
        while True:
            flags, length = _HEAD.unpack(await content.readexactly(_HEAD.size))
            if length > MAX_FRAME:
                raise StreamBroken(f"the sandbox sent a frame of {length} bytes")
            message = _object(await content.readexactly(length))
            if flags & END:
                said: dict[str, Any] | None = message.get("error")
                if said:
                    code = str(said.get("code"))
                    raise ApiError(_STATUS.get(code, 500), str(said.get("message", code)))
                return
            yield message
    except (EOFError, aiohttp.ClientError, AttributeError, ValueError, struct.error) as error:
        raise StreamBroken() from error


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return cast(dict[str, Any], value)
