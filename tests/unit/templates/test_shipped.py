"""Shipped templates: made once, and nothing of a making that was cut off stays."""

from collections.abc import AsyncGenerator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.sandboxes.driver import SnapshotUnusable
from forkyard.sandboxes.models import SnapshotState
from forkyard.storage.engine import DatabaseUrl
from forkyard.storage.errors import DatabaseUnavailable
from forkyard.templates.shipped import ShippedTemplate, ensure_template
from forkyard.testing.core import NODE
from forkyard.testing.database import emptied_database
from forkyard.testing.fake_driver import remove_files
from forkyard.testing.fake_host import IMAGE
from forkyard.testing.faults import fail
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world

BASE = ShippedTemplate("base", IMAGE, vcpus=2, memory_mb=512, disk_mb=1024)
LARGER = ShippedTemplate("base", IMAGE, vcpus=4, memory_mb=512, disk_mb=1024)


@pytest_asyncio.fixture
async def world(database_url: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    with without_threads() if database_url.path else nullcontext():
        async with emptied_database(database_url) as database, make_world(database, tmp_path) as world:
            yield world


async def ready(world: World) -> list[str]:
    return [s.id for s in await world.core.store.snapshots_in(NODE, [SnapshotState.READY])]


async def test_one_that_is_there_is_used(world: World) -> None:
    assert (await ensure_template(world.core, BASE)).id == world.template.id
    assert await ready(world) == [world.template.id]


async def test_the_name_moves_to_the_new_one(world: World) -> None:
    made = await ensure_template(world.core, LARGER)
    assert await ready(world) == [made.id]
    assert made.template_id == world.template.template_id
    assert (await world.create()).vcpus == 4


async def test_a_damaged_one_is_made_again(world: World) -> None:
    remove_files(world.snapshot_folder / world.template.id)
    made = await ensure_template(world.core, BASE)
    assert await ready(world) == [made.id] != [world.template.id]
    assert made.template_id == world.template.template_id
    await world.create()


async def test_one_that_this_host_cannot_restore_is_made_again(world: World) -> None:
    world.host.faults.add(fail("driver.check", SnapshotUnusable("this processor lacks avx512f")))
    made = await ensure_template(world.core, BASE)
    assert await ready(world) == [made.id] != [world.template.id]
    assert (await ensure_template(world.core, BASE)).id == made.id


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_nothing_of_a_making_that_was_cut_off_stays(world: World, write: int) -> None:
    cut_off = world.host.faults.add(fail("store.write", DatabaseUnavailable(), nth=write, times=0))
    with suppress(DatabaseUnavailable):
        await ensure_template(world.core, LARGER)
    assert cut_off.hits
    world.host.faults.clear()
    await world.restart()
    made = await ensure_template(world.core, LARGER)
    assert await ready(world) == [made.id]
