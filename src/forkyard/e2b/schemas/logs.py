"""Bodies about what happened to a sandbox."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from forkyard.e2b.schemas.base import ResponseBody

LogLevel = Literal["debug", "info", "warn", "error"]


class SandboxLog(ResponseBody):
    timestamp: datetime
    line: str
    """A JSON object as text, with `level`, `logger` and `message`: the E2B CLI parses it."""


class SandboxLogEntry(ResponseBody):
    timestamp: datetime
    level: LogLevel
    message: str
    fields: dict[str, str]


class SandboxLogs(ResponseBody):
    logs: list[SandboxLog]
    logEntries: list[SandboxLogEntry]


class SandboxLogsV2Response(ResponseBody):
    logs: list[SandboxLogEntry]
