"""Bodies about snapshots."""

from __future__ import annotations

from forkyard.e2b.schemas.base import Optional, RequestBody, ResponseBody


class SandboxSnapshotRequest(RequestBody):
    name: Optional[str] = None
    """`alias[:tag]`. It leads to this snapshot from now on, wherever it led before."""
    memory: Optional[bool] = None
    """false: keep the files only. Default true."""


class SnapshotInfo(ResponseBody):
    snapshotID: str
    """With tag; what a create or delete takes."""
    names: list[str]
    """Without tags."""
