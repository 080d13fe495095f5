"""A world for every test of the sandbox core: a fake host, a server on it, the template `base`."""

from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path

import pytest_asyncio

from forkyard.storage.engine import DatabaseUrl
from forkyard.testing.database import emptied_database
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world


@pytest_asyncio.fixture
async def world(database_url: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    """Checked at the end of the test: all at rest, nothing left, no rule of the host broken."""
    with without_threads() if database_url.path else nullcontext():
        async with emptied_database(database_url) as database, make_world(database, tmp_path) as world:
            yield world
