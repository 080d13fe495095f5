"""What the data plane has to know of a sandbox. The contract with the edge is `specs/edge.md`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.models import Sandbox


class RouteState(StrEnum):
    RUNNING = "running"
    HELD = "held"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Route:
    """The way to one generation of one sandbox."""

    id: str
    generation: int
    state: RouteState
    address: str | None
    envd_token: str | None
    traffic_token: str | None
    public: bool
    auto_resume: bool
    mask_host: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "generation": self.generation,
            "state": self.state.value,
            "address": self.address,
            "envd_token": self.envd_token,
            "traffic_token": self.traffic_token,
            "public": self.public,
            "auto_resume": self.auto_resume,
            "mask_host": self.mask_host,
        }


def route_of(sandbox: Sandbox, state: RouteState) -> Route:
    """The route of a sandbox as its record stands."""
    address = None
    if state is RouteState.RUNNING:
        if sandbox.handle is None:
            raise ValueError(f"sandbox {sandbox.id} has no machine to route to")
        address = Handle.from_json(sandbox.handle).address
    return Route(
        id=sandbox.id,
        generation=sandbox.generation,
        state=state,
        address=address,
        envd_token=sandbox.envd_token,
        traffic_token=sandbox.traffic_token,
        public=sandbox.public_traffic,
        auto_resume=sandbox.auto_resume,
        mask_host=sandbox.mask_host,
    )


class RouteTable(Protocol):
    """The data plane's routes. Both calls return after the change holds there, or once no data plane is alive that
    could use the old route; they do not fail.

    An operation changes the route of a sandbox only while nobody else can: before its commit, as the owner of the
    transition, or after it behind the gate (`changes.Gates`). A later call would undo what the next operation did.
    """

    async def set(self, route: Route) -> None:
        """Publish or replace. Streams of an older generation, and of one that is not `running` any more, are reset."""
        ...

    async def remove(self, sandbox_id: str, generation: int) -> None:
        """Take a route away and reset its streams. Unknown is fine."""
        ...
