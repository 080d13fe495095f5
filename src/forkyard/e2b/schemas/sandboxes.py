"""Bodies about sandboxes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from forkyard.e2b.schemas.base import Omittable, Optional, RequestBody, ResponseBody, Seconds
from forkyard.e2b.schemas.errors import Error
from forkyard.e2b.schemas.network import SandboxNetworkConfig, SandboxNetworkInfo

SandboxState = Literal["running", "paused"]


class SandboxAutoResumeConfig(RequestBody):
    enabled: bool = False
    """Whether a request to the paused sandbox resumes it."""


class NewSandboxV2(RequestBody):
    """A new sandbox. It is always secured: the answer has the token of its daemon."""

    templateID: Annotated[str, Field(max_length=500)]
    """Id or name of a template or snapshot, optionally `:tag`."""
    timeout: Optional[Seconds] = None
    """Seconds to live. Default 300."""
    autoPause: Optional[bool] = None
    """Pause at the end of the time to live instead of ending. Default false."""
    autoPauseMemory: Optional[bool] = None
    """false: that pause keeps the files only, and the resume starts afresh. Default true."""
    autoResume: Optional[SandboxAutoResumeConfig] = None
    allow_internet_access: Optional[bool] = None
    network: Optional[SandboxNetworkConfig] = None
    metadata: Optional[dict[str, str]] = None
    envVars: Optional[dict[str, str]] = None
    mcp: Optional[dict[str, Any]] = None
    """The SDKs start the MCP gateway themselves; nothing is done with it here."""
    iam: Optional[dict[str, Any]] = None
    """Not supported: refused unless empty."""
    volumeMounts: Optional[list[dict[str, Any]]] = None
    """Not supported: refused unless empty."""


class NewSandbox(NewSandboxV2):
    """A new sandbox, for SDKs before version 2 of this route. Secured only on request."""

    timeout: Optional[Seconds] = None
    """Seconds to live. Default 15."""
    secure: Optional[bool] = None


class ConnectSandbox(RequestBody):
    timeout: Seconds
    """The sandbox lives at least that many seconds longer; never shorter than before."""
    memory: Optional[bool] = None
    """false: if it is paused, start afresh from its files. Default true."""


class ConnectSandboxV2(RequestBody):
    timeout: Optional[Seconds] = None
    """As in version 1. Default 300."""
    memory: Optional[bool] = None
    """false: if it is paused, start afresh from its files. Default true."""


class ResumedSandbox(RequestBody):
    timeout: Optional[Seconds] = None
    """Seconds to live. Default 15."""
    autoPause: Optional[bool] = None
    """Only what the sandbox has already is accepted."""
    memory: Optional[bool] = None
    """false: start afresh from its files. Default true."""


class SandboxPauseRequest(RequestBody):
    memory: Optional[bool] = None
    """false: keep the files only; processes end. Default true."""
    requireHealthyGuest: Optional[bool] = None
    """Refuse (503) if the sandbox's daemon does not answer. Default false."""


class SandboxTimeoutRequest(RequestBody):
    timeout: Seconds
    """Seconds from now; 0 is now."""


class SandboxRefreshRequest(RequestBody):
    duration: Optional[Annotated[int, Field(ge=0, le=3600)]] = None
    """Seconds from now that it lives at least; at least 15."""


class SandboxForkRequest(RequestBody):
    timeout: Optional[Seconds] = None
    """Seconds the children live. Default 15."""
    count: Optional[Annotated[int, Field(ge=1, le=100)]] = None
    """Number of children. Default 1."""


class Sandbox(ResponseBody):
    templateID: str
    sandboxID: str
    clientID: str
    envdVersion: str
    alias: Omittable[str] = None
    envdAccessToken: Omittable[str] = None
    trafficAccessToken: str | None = None
    domain: str | None = None


class ListedSandbox(ResponseBody):
    templateID: str
    sandboxID: str
    clientID: str
    startedAt: datetime
    endAt: datetime
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    state: SandboxState
    envdVersion: str
    alias: Omittable[str] = None
    metadata: dict[str, str]
    unhealthyReason: Omittable[str] = None
    """Why the sandbox is thought to be ill; not part of E2B's API."""


class SandboxLifecycle(ResponseBody):
    autoResume: bool
    onTimeout: Literal["kill", "pause"]


class SandboxDetail(ListedSandbox):
    envdAccessToken: Omittable[str] = None
    """Not for read-only keys: whoever has it can do everything in the sandbox."""
    allowInternetAccess: bool | None = None
    domain: str | None = None
    network: Omittable[SandboxNetworkInfo] = None
    lifecycle: SandboxLifecycle
    pauseMode: Omittable[Literal["full", "filesystem"]] = None


class SandboxForkResult(ResponseBody):
    """One child: exactly one of the two is there."""

    sandbox: Omittable[Sandbox] = None
    error: Omittable[Error] = None
