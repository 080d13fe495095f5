"""A caller that is cut off, at whatever call of it, does not cut off the operation."""

import asyncio
from contextlib import suppress

import pytest

from forkyard.testing.faults import hold
from forkyard.testing.world import World
from tests.unit.sandboxes.operations import OPERATIONS, Operation, clear, nothing_is_lost, prepared
from tests.unit.sandboxes.rounds import calls_of, named, some


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_the_operation_goes_on(world: World, operation: Operation) -> None:
    for call, nth in some(await calls_of(world, operation), 6, operation.name):
        sandbox = await prepared(world, operation)
        held = world.host.faults.add(hold(call, nth=nth))
        task = asyncio.ensure_future(operation.run(world, sandbox))
        while not held.reached.is_set() and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        held.release()
        await world.server.quiet()
        assert await world.state(sandbox.id) is operation.done, f"cut off at {call} #{nth}"
        await nothing_is_lost(world, operation, sandbox)
        if operation.name == "create":
            assert len(await world.core.store.of_node(world.core.node_id)) == 2
        await clear(world)
