"""Frames of a Connect stream: one byte of flags, four bytes of length (big endian), JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from typing import Any

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
            message = json.loads(await content.readexactly(length))
            if flags & END:
                error = message.get("error")
                if error:
                    raise ApiError(
                        _STATUS.get(error.get("code"), 500), str(error.get("message", error.get("code")))
                    )
                return
            yield message
    except (EOFError, aiohttp.ClientError, ValueError, struct.error) as error:
        raise StreamBroken() from error
