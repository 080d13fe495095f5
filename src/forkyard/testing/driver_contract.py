"""What every driver does, as tests: `sandboxes/driver.py` made executable.

A test module derives from the classes here and has a fixture `bench` that makes a `Bench` of its driver. The classes
for capabilities (Checkpoint and Restore, Network, Stats, Prewarm) are derived from only where the driver has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.driver import (
    Checkpoint,
    Driver,
    DriverError,
    EgressPolicy,
    Handle,
    MachineEvent,
    MachineEventKind,
    MachineLost,
    MachineSpec,
    Network,
    Prewarm,
    Restore,
    SnapshotUnusable,
    Stats,
)

PATIENCE = 20.0


class Bench(Protocol):
    """One host with an open driver on it."""

    driver: Any
    """A Driver, and whatever else it can."""
    directory: Path
    """For checkpoints; on the node's data, as the driver wants it."""

    def spec(self, name: str) -> MachineSpec:
        """A small machine of the newest shape."""
        ...

    async def kill(self, handle: Handle) -> None:
        """End the machine's process from outside."""
        ...

    async def reopen(self) -> None:
        """Let the driver go and open another one on the same host, as a restart of the server does."""
        ...

    async def left(self, name: str) -> list[str]:
        """What is still there of a machine that is destroyed: processes, groups, files. For the failure's text."""
        ...


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.005)
    assert await condition(), what


async def next_event(events: AsyncIterator[MachineEvent], kind: MachineEventKind, name: str) -> MachineEvent:
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if event.kind is kind and event.name == name:
                return event
    raise AssertionError(f"no event {kind} of {name}")


def _can(driver: object, protocol: type) -> None:
    """Not in the tests themselves, where it would narrow the driver's type to that one protocol."""
    assert isinstance(driver, protocol)


class DriverContract:
    """Life of machines."""

    async def test_life(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        handle = await driver.create(bench.spec("life"))
        assert (handle.driver, handle.name) == (driver.name, "life")
        assert Handle.from_json(handle.to_json()) == handle
        assert (await driver.inspect(handle)).running
        assert [h.name for h in await driver.list_handles()] == ["life"]
        await driver.destroy(handle)
        status = await driver.inspect(handle)
        assert not status.running
        assert status.reason
        assert list(await driver.list_handles()) == []
        assert await bench.left("life") == []

    async def test_destroy_is_idempotent(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        handle = await driver.create(bench.spec("twice"))
        await asyncio.gather(*(driver.destroy(handle) for _ in range(4)))
        await driver.destroy("twice")
        await driver.destroy("never-there")
        assert await bench.left("twice") == []

    async def test_a_name_is_taken_once(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        handle = await driver.create(bench.spec("taken"))
        with pytest.raises(DriverError):
            await driver.create(bench.spec("taken"))
        assert (await driver.inspect(handle)).running
        await driver.destroy(handle)
        again = await driver.create(bench.spec("taken"))
        assert (await driver.inspect(again)).running
        await driver.destroy(again)

    async def test_machines_are_made_at_once(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        handles = await asyncio.gather(*(driver.create(bench.spec(f"many-{i}")) for i in range(3)))
        assert len({h.address for h in handles}) == 3
        await asyncio.gather(*(driver.destroy(h) for h in handles))
        assert list(await driver.list_handles()) == []

    async def test_destroy_during_create(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        for delay in (0.0, 0.01, 0.03, 0.06):
            creating = asyncio.create_task(driver.create(bench.spec("hasty")))
            await asyncio.sleep(delay)
            await driver.destroy("hasty")
            with suppress(ForkyardError):
                await creating
            await driver.destroy("hasty")
            assert list(await driver.list_handles()) == []
            assert await bench.left("hasty") == []

    async def test_a_create_that_is_cut_off_leaves_nothing(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        for delay in (0.0, 0.02, 0.05):
            creating = asyncio.create_task(driver.create(bench.spec("cut")))
            await asyncio.sleep(delay)
            creating.cancel()
            with suppress(asyncio.CancelledError):
                handle = await creating
                await driver.destroy(handle)  # it was faster

            async def nothing_left() -> bool:
                return not await driver.list_handles() and not await bench.left("cut")

            await eventually(nothing_left, "what a cut-off create made is gone")

    async def test_a_death_is_told(self, bench: Bench) -> None:
        driver: Driver = bench.driver
        events = driver.events()
        handle = await driver.create(bench.spec("victim"))
        await bench.kill(handle)
        event = await next_event(events, MachineEventKind.EXIT, "victim")
        assert event.reason
        status = await driver.inspect(handle)
        assert not status.running
        assert status.reason
        assert [h.name for h in await driver.list_handles()] == ["victim"]
        await driver.destroy(handle)
        assert await bench.left("victim") == []

    async def test_machines_outlive_the_driver(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("survivor"))
        await bench.reopen()
        driver: Driver = bench.driver
        assert (await driver.inspect(handle)).running
        assert [h.name for h in await driver.list_handles()] == ["survivor"]
        events = driver.events()
        await bench.kill(handle)
        await next_event(events, MachineEventKind.EXIT, "survivor")
        await driver.destroy(handle)
        assert await bench.left("survivor") == []


class CheckpointContract:
    """Checkpoint and Restore."""

    async def test_a_copy_goes_on_beside_its_source(self, bench: Bench) -> None:
        driver: Any = bench.driver
        _can(driver, Checkpoint)
        _can(driver, Restore)
        source = await bench.driver.create(bench.spec("source"))
        directory = bench.directory / "copy"
        result = await driver.checkpoint(source, directory)
        for file in result.files:
            assert (directory / file.name).stat().st_size == file.size
        assert (await bench.driver.inspect(source)).running
        await driver.check(directory, result.requires, result.files)
        names = ("copy-1", "copy-2")
        copies = await asyncio.gather(
            *(
                driver.restore(driver.spec_of(result.requires, name=name, egress=EgressPolicy()), directory)
                for name in names
            )
        )
        assert len({source.address, *(c.address for c in copies)}) == 3
        for handle in (source, *copies):
            assert (await bench.driver.inspect(handle)).running
            await bench.driver.destroy(handle)

    async def test_it_never_overwrites(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("careful"))
        directory = bench.directory / "there"
        directory.mkdir()
        (directory / "precious").write_text("x")
        with pytest.raises(ForkyardError):
            await bench.driver.checkpoint(handle, directory)
        assert (directory / "precious").read_text() == "x"
        assert (await bench.driver.inspect(handle)).running
        await bench.driver.destroy(handle)

    async def test_of_a_machine_that_is_gone(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("gone"))
        await bench.driver.destroy(handle)
        with pytest.raises(MachineLost):
            await bench.driver.checkpoint(handle, bench.directory / "gone")
        assert not (bench.directory / "gone").exists()

    async def test_it_can_be_the_end(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("last"))
        result = await bench.driver.checkpoint(handle, bench.directory / "last", leave_running=False)

        async def ended() -> bool:
            return not (await bench.driver.inspect(handle)).running

        await eventually(ended, "the machine ends")
        await bench.driver.destroy(handle)
        spec = bench.driver.spec_of(result.requires, name="next", egress=EgressPolicy())
        after = await bench.driver.restore(spec, bench.directory / "last")
        assert (await bench.driver.inspect(after)).running
        await bench.driver.destroy(after)

    async def test_damage_is_found_before_anything_starts(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("damaged"))
        directory = bench.directory / "damaged"
        result = await bench.driver.checkpoint(handle, directory)
        other = {**result.requires, "shape": {**result.requires["shape"], "image": "0" * 64}}
        with pytest.raises(SnapshotUnusable):
            await bench.driver.check(directory, other, result.files)
        (directory / result.files[0].name).write_bytes(b"")
        with pytest.raises(SnapshotUnusable):
            await bench.driver.check(directory, result.requires, result.files)
        await bench.driver.destroy(handle)

    async def test_a_failed_restore_leaves_nothing(self, bench: Bench) -> None:
        handle = await bench.driver.create(bench.spec("good"))
        directory = bench.directory / "bad"
        result = await bench.driver.checkpoint(handle, directory)
        for file in result.files:
            (directory / file.name).write_bytes(b"\0" * 100)
        spec = bench.driver.spec_of(result.requires, name="bad", egress=EgressPolicy())
        with pytest.raises(ForkyardError):
            await bench.driver.restore(spec, directory)
        assert [h.name for h in await bench.driver.list_handles()] == ["good"]
        assert await bench.left("bad") == []
        await bench.driver.destroy(handle)


class NetworkContract:
    async def test_cut_and_uncut(self, bench: Bench) -> None:
        _can(bench.driver, Network)
        handle = await bench.driver.create(bench.spec("cable"))
        for _ in range(2):
            await bench.driver.cut(handle)
        for _ in range(2):
            await bench.driver.uncut(handle)
        await bench.driver.set_egress(handle, EgressPolicy(allow_internet=False))
        await bench.driver.destroy(handle)


class StatsContract:
    async def test_samples(self, bench: Bench) -> None:
        _can(bench.driver, Stats)
        here, gone = await asyncio.gather(
            *(bench.driver.create(bench.spec(name)) for name in ("measured", "unmeasured"))
        )
        await bench.driver.destroy(gone)
        samples = await bench.driver.stats([here, gone])
        assert set(samples) == {"measured"}
        assert samples["measured"].cpu_ns > 0
        assert await bench.driver.stats([]) == {}
        await bench.driver.destroy(here)


class PrewarmContract:
    async def test_prepared_machines(self, bench: Bench) -> None:
        _can(bench.driver, Prewarm)
        driver: Any = bench.driver
        shape = bench.spec("x").shape
        driver.demand(shape, 1)

        async def ready() -> bool:
            return driver.prepared().get(shape, 0) >= 1

        await eventually(ready, "one is prepared")
        assert list(await driver.list_handles()) == []
        source = await driver.create(bench.spec("warm"))
        result = await driver.checkpoint(source, bench.directory / "warm")
        handle = await driver.restore(
            driver.spec_of(result.requires, name="taker", egress=EgressPolicy()), bench.directory / "warm"
        )
        assert (await driver.inspect(handle)).running
        driver.hold(True)

        async def none_left() -> bool:
            return not driver.prepared().get(shape, 0)

        await eventually(none_left, "they are let go when there is no memory for them")
        driver.hold(False)
        await eventually(ready, "others are prepared when there is")
        driver.demand(shape, 0)
        await eventually(none_left, "the others are let go")
        for each in (source, handle):
            await driver.destroy(each)
