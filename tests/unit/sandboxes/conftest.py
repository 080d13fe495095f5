"""A world for every test of the sandbox core: a fake host, a server on it, the template `base`."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest_asyncio

from forkyard.storage.session import Database
from forkyard.testing.world import World, make_world


@pytest_asyncio.fixture
async def world(database: Database, tmp_path: Path) -> AsyncGenerator[World]:
    """Checked at the end of the test: all at rest, nothing left, no rule of the host broken."""
    async with make_world(database, tmp_path) as world:
        yield world
