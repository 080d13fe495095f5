"""kill -9 at every named point of every operation, and of the next server at every call of its recovery."""

import pytest

from forkyard.testing.world import World
from tests.unit.sandboxes.operations import Operation
from tests.unit.sandboxes.rounds import CRASHES, crash_twice, named

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("operation", "point"), CRASHES, ids=named)
async def test_the_next_server_dies_too(world: World, operation: Operation, point: str) -> None:
    nth = 1
    while await crash_twice(world, operation, point, nth):
        nth += 1
