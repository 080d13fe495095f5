"""The edge's supervisor: an edge that could not be given the table is given it at the next try."""

import asyncio
import os
from pathlib import Path

import pytest

from forkyard.node.edge_client import EdgeAway, EdgeInfo
from forkyard.node.edge_supervisor import EdgeSupervisor
from forkyard.node.readiness import Readiness
from forkyard.testing.clock import ManualClock


class Client:
    async def info(self) -> EdgeInfo:
        return EdgeInfo("1", os.getpid(), 1, "127.0.0.1:80")


class Routes:
    def __init__(self) -> None:
        self.fails = True

    async def attach(self) -> None:
        if self.fails:
            raise EdgeAway("it is busy")


async def test_an_edge_that_was_not_attached_is_attached_by_the_next_run() -> None:
    routes, readiness = Routes(), Readiness("edge")
    supervisor = EdgeSupervisor(
        None,  # type: ignore[arg-type]
        Path("edge"),
        Client(),  # type: ignore[arg-type]
        routes,  # type: ignore[arg-type]
        readiness,
        ManualClock(),
        cgroup="none",
    )
    with pytest.raises(EdgeAway):
        await supervisor.attach()
    assert readiness.missing()
    routes.fails = False
    run = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(2):
            while readiness.missing():
                await asyncio.sleep(0.001)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
