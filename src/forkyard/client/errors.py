"""What a server, or a sandbox behind it, says no with."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError


class ApiError(ForkyardError):
    """The server refused the request."""

    code = "api_error"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServerUnreachable(ForkyardError):
    """The server cannot be reached."""

    code = "server_unreachable"


class StreamBroken(ForkyardError):
    """The connection to the sandbox ended before the answer did; it was paused or killed, or the network failed."""

    code = "stream_broken"
