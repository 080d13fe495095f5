"""Every call of every operation of the sandbox core fails, once or for long, or is where the operation is cancelled."""

import pytest

from forkyard.testing.world import World
from tests.unit.sandboxes.operations import OPERATIONS, Operation
from tests.unit.sandboxes.rounds import (
    ERRORS,
    calls_of,
    failing_from,
    failing_once,
    named,
    round_cancelled,
    round_with,
)

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_it_fails_once(world: World, operation: Operation, after: bool) -> None:
    for call, nth in await calls_of(world, operation):
        await round_with(world, operation, failing_once(call, nth, after=after))


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
@pytest.mark.parametrize("part", ERRORS)
async def test_a_part_fails_from_there_on(world: World, operation: Operation, part: str) -> None:
    calls = [call for call, _ in await calls_of(world, operation) if call.startswith(part)]
    for nth in range(1, len(calls) + 1):
        await round_with(world, operation, failing_from(part, nth))


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_the_operation_is_cancelled_there(world: World, operation: Operation) -> None:
    for call, nth in await calls_of(world, operation):
        await round_cancelled(world, operation, call, nth)
