"""The gVisor driver where its processes die, and where its two runtimes meet."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from forkyard.drivers.gvisor import keeper as keeper_module
from forkyard.drivers.gvisor.driver import ENVD_PORT
from forkyard.drivers.gvisor.keeper import KeeperAway
from forkyard.host.errors import ProcessGone
from forkyard.host.processes import ProcessHandle, wait_exit
from forkyard.sandboxes.driver import DriverError, EgressPolicy, Handle, MachineEventKind
from forkyard.testing import gvisor_bench
from forkyard.testing.driver_contract import PATIENCE, eventually, next_event
from forkyard.testing.gvisor_bench import GvisorBench

pytestmark = [pytest.mark.root, pytest.mark.runtime]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := gvisor_bench.missing():
        pytest.skip(reason)
    return gvisor_bench.make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
async def bench(image: Path) -> AsyncIterator[GvisorBench]:
    async with gvisor_bench.opened(image, keeper=True) as bench:
        yield bench


async def envd_answers(handle: Handle) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session,
            session.get(f"http://{handle.address}:{ENVD_PORT}/health") as response,
        ):
            return response.status == 204
    except (aiohttp.ClientError, TimeoutError):
        return False


async def keeper_process(bench: GvisorBench) -> ProcessHandle:
    (path,) = bench.config.run_dir.glob("keeper-*.sock")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(path))) as session,
        session.get("http://keeper/v1/info") as response,
    ):
        return ProcessHandle.of(int((await response.json())["pid"]))


async def found(bench: GvisorBench, handle: Handle) -> bool:
    try:
        return (await bench.driver.inspect(handle)).running
    except KeeperAway:
        return False


async def test_envd_answers_before_and_after(bench: GvisorBench) -> None:
    source = await bench.driver.create(bench.spec("source"))
    await eventually(lambda: envd_answers(source), "envd answers")
    result = await bench.driver.checkpoint(source, bench.directory / "s")
    spec = bench.driver.spec_of(result.requires, name="copy", egress=EgressPolicy())
    copy = await bench.driver.restore(spec, bench.directory / "s")
    await eventually(lambda: envd_answers(copy), "envd of the copy answers")
    await bench.driver.cut(copy)
    assert not await envd_answers(copy)
    assert await envd_answers(source)
    await bench.driver.uncut(copy)
    await eventually(lambda: envd_answers(copy), "envd of the copy answers again")


async def test_the_keeper_is_killed(bench: GvisorBench) -> None:
    events = bench.driver.events()
    handle = await bench.driver.create(bench.spec("survivor"))
    await bench.driver.watch(handle)
    for _ in range(2):
        process = await keeper_process(bench)
        process.send(signal.SIGKILL)

        await eventually(lambda: found(bench, handle), "the machine is found again")
        assert await keeper_process(bench) != process
        await eventually(lambda: envd_answers(handle), "envd answers")
    other = await bench.driver.create(bench.spec("other"))
    await bench.driver.destroy(other)
    await bench.kill(handle)
    await next_event(events, MachineEventKind.EXIT, "survivor")


async def test_the_keeper_is_killed_in_the_middle(bench: GvisorBench) -> None:
    """Whatever a call was doing, it fails or works, and nothing of it is left when it failed."""
    for delay in (0.005, 0.03, 0.06):
        process = await keeper_process(bench)
        creating = asyncio.create_task(bench.driver.create(bench.spec("middle")))
        await asyncio.sleep(delay)
        process.send(signal.SIGKILL)
        try:
            handle = await creating
        except DriverError:
            assert list(await bench.driver.list_handles()) == []
        else:
            await bench.driver.destroy(handle)
        assert await bench.left("middle") == []


async def test_a_keeper_that_hangs_is_replaced(bench: GvisorBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "_INFO", aiohttp.ClientTimeout(total=1.0))
    monkeypatch.setattr(keeper_module, "_SILENCE_S", 6.0)
    handle = await bench.driver.create(bench.spec("survivor"))
    await bench.driver.watch(handle)
    await eventually(lambda: envd_answers(handle), "envd answers")
    # The stream that was opened at the start has the old patience.
    first = await keeper_process(bench)
    first.send(signal.SIGKILL)
    await wait_exit(first)
    await eventually(lambda: found(bench, handle), "the machine is found again")
    hung = await keeper_process(bench)
    assert hung.send(signal.SIGSTOP)
    # Asked of the one that hangs, and answered after it.
    call = asyncio.create_task(bench.driver.inspect(handle))
    async with asyncio.timeout(PATIENCE):
        assert (await call).running
    assert not hung.alive()
    assert await envd_answers(handle)
    other = await bench.driver.create(bench.spec("other"))
    await bench.driver.destroy(other)


async def test_a_keeper_that_hangs_when_the_driver_is_opened_or_closed(
    bench: GvisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_INFO", aiohttp.ClientTimeout(total=1.0))
    handle = await bench.driver.create(bench.spec("survivor"))
    hung = await keeper_process(bench)
    await bench.driver.ping()
    assert hung.send(signal.SIGSTOP)
    with pytest.raises(KeeperAway):
        await bench.driver.ping()
    await bench.reopen()
    assert not hung.alive()
    assert (await bench.driver.inspect(handle)).running
    await bench.driver.destroy(handle)
    hung = await keeper_process(bench)
    assert hung.send(signal.SIGSTOP)
    monkeypatch.setattr(keeper_module, "_ENDING_S", 1.0)
    await bench.reopen()
    assert not hung.alive()


async def test_destroy_when_the_keeper_is_killed(bench: GvisorBench) -> None:
    handle = await bench.driver.create(bench.spec("doomed"))
    process = await keeper_process(bench)
    destroying = asyncio.create_task(bench.driver.destroy(handle))
    process.send(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await destroying
    assert await bench.left("doomed") == []


async def test_an_empty_machine_that_died_is_not_used(bench: GvisorBench) -> None:
    source = await bench.driver.create(bench.spec("source"))
    result = await bench.driver.checkpoint(source, bench.directory / "s")
    shape = bench.spec("x").shape
    bench.driver.demand(shape, 1)

    async def ready() -> bool:
        return bench.driver.prepared().get(shape, 0) == 1

    await eventually(ready, "one is prepared")
    (group,) = Path("/sys/fs/cgroup").glob(f"memory/forkyard-{bench.config.instance}/empty-*")  # noqa: ASYNC240
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessGone):  # the others end with the first
            ProcessHandle.of(int(pid)).send(signal.SIGKILL)
    spec = bench.driver.spec_of(result.requires, name="taker", egress=EgressPolicy())
    handle = await bench.driver.restore(spec, bench.directory / "s")
    assert (await bench.driver.inspect(handle)).running
    await eventually(lambda: envd_answers(handle), "envd answers")


async def test_a_checkpoint_is_restored_without_a_keeper(image: Path, tmp_path: Path) -> None:
    async with gvisor_bench.opened(image, keeper=True) as bench:
        source = await bench.driver.create(bench.spec("source"))
        result = await bench.driver.checkpoint(source, bench.directory / "s")
        async with gvisor_bench.opened(image, keeper=False) as other:
            spec = other.driver.spec_of(result.requires, name="copy", egress=EgressPolicy())
            copy = await other.driver.restore(spec, bench.directory / "s")
            await eventually(lambda: envd_answers(copy), "envd of the copy answers")
            back = await other.driver.checkpoint(copy, other.directory / "back")
            spec = bench.driver.spec_of(back.requires, name="back", egress=EgressPolicy())
            again = await bench.driver.restore(spec, other.directory / "back")
            await eventually(lambda: envd_answers(again), "envd of the copy's copy answers")
