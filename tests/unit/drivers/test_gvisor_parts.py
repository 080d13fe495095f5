"""Parts of the gVisor driver that need no machine."""

import asyncio
import json
import os
import re
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from forkyard.drivers.gvisor.binaries import Binaries, FileHashes
from forkyard.drivers.gvisor.container_files import ContainerFiles, Phase
from forkyard.drivers.gvisor.empties import Empties, Empty
from forkyard.drivers.gvisor.records import MachineRecord, MachineRecords
from forkyard.drivers.gvisor.runsc_process import _flags
from forkyard.drivers.gvisor.spec import cgroup_memory_limit, memory_limit, memory_marks, oci_spec
from forkyard.drivers.gvisor.turns import Turns
from forkyard.host.addresses import AddressPool
from forkyard.host.processes import ProcessHandle
from forkyard.sandboxes.driver import EgressPolicy, Shape, SnapshotUnusable
from forkyard.testing.clock import ManualClock

SHAPE = Shape("1" * 64, "2" * 64, "3" * 64, 2, 512, 1024)
SLOT = AddressPool("abcdef").slot(7)
GO_FLAGS = Path(__file__).resolve().parents[3] / "go/internal/keeper/runtime/flags.go"


def test_spec_depends_on_the_shape_alone() -> None:
    """A restore needs the very spec of the checkpoint, but for namespace, cgroup and sources of mounts."""
    one = oci_spec(SHAPE, netns="/run/netns/a", cgroup="/x/a", volumes="/v/a")
    two = oci_spec(SHAPE, netns="/run/netns/b", cgroup="/x/b", volumes="/v/b")
    for spec in (one, two):
        spec["linux"]["namespaces"][0]["path"] = spec["linux"]["cgroupsPath"] = ""
        for mount in spec["mounts"]:
            mount["source"] = ""
    assert one == two


def test_spec_has_what_traps_demand() -> None:
    spec = oci_spec(SHAPE, netns="/run/netns/a", cgroup="/x/a", volumes="/v/a")
    binds = [mount for mount in spec["mounts"] if mount["type"] == "bind"]
    assert len(binds) >= 1, "without a bind mount there is no gofer, and no disk that is a file"
    assert spec["annotations"]["dev.gvisor.spec.rootfs.options"] == "size=1024m"
    assert not spec["process"].get("terminal")
    assert "CAP_SYS_ADMIN" in spec["process"]["capabilities"]["bounding"]
    assert not os.path.isabs(spec["root"]["path"])
    assert cgroup_memory_limit(SHAPE) > memory_limit(SHAPE) == 512 << 20
    assert memory_marks(SHAPE) == sorted(memory_marks(SHAPE))
    assert memory_marks(SHAPE)[-1] < memory_limit(SHAPE)


def test_both_runtimes_set_the_same_flags() -> None:
    """A checkpoint of one is restored by the other: what shapes a sandbox must not differ."""
    ours = {flag.partition("=")[0] for flag in _flags("/dir")}
    theirs = set(re.findall(r'"(--[a-z0-9-]+)=', GO_FLAGS.read_text()))
    # The keeper places processes in cgroups itself; not being rootless is what runsc does anyway.
    assert theirs - ours == {"--ignore-cgroups", "--rootless", "--debug-log"}
    assert ours - theirs == set()


async def test_turns_come_one_after_another() -> None:
    turns, order = Turns(), list[str]()

    async def work(name: str, step: str) -> None:
        async with turns.of(name):
            order.append(f"{step} in")
            await asyncio.sleep(0)
            order.append(f"{step} out")

    await asyncio.gather(work("a", "1"), work("a", "2"))
    assert order == ["1 in", "1 out", "2 in", "2 out"]
    assert not turns.busy("a")
    async with turns.of("a"):
        assert turns.busy("a")
        assert not turns.busy("b")


class Stock:
    """Makes empty machines, and counts."""

    def __init__(self) -> None:
        self.made = 0
        self.ended: list[str] = []

    async def make(self, shape: Shape) -> Empty:
        self.made += 1
        return Empty(f"empty-{self.made}", SLOT, shape)

    async def end(self, empty: Empty) -> None:
        self.ended.append(empty.container)


async def filled(empties: Empties, shape: Shape, count: int) -> None:
    async with asyncio.timeout(5):
        while empties.counts().get(shape, 0) != count:
            await asyncio.sleep(0)


async def test_empties_follow_demand() -> None:
    stock, clock = Stock(), ManualClock()
    empties = Empties(most=2, make=stock.make, end=stock.end, clock=clock)
    loop = asyncio.create_task(empties.run())
    try:
        assert empties.take(SHAPE) is None  # a create never waits for one
        await filled(empties, SHAPE, 2)
        empties.demand(SHAPE, 100)
        await filled(empties, SHAPE, 2)  # no more than the most
        taken = empties.take(SHAPE)
        assert taken is not None
        await filled(empties, SHAPE, 2)
        assert empties.discard("empty-2") is not None
        assert empties.discard("empty-2") is None
        await filled(empties, SHAPE, 2)
        empties.demand(SHAPE, 0)
        await filled(empties, SHAPE, 0)
        assert taken.container not in stock.ended
        assert len(stock.ended) == 2
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_empties_are_let_go_while_they_are_held() -> None:
    stock = Stock()
    empties = Empties(most=2, make=stock.make, end=stock.end, clock=ManualClock())
    loop = asyncio.create_task(empties.run())
    try:
        empties.demand(SHAPE, 2)
        await filled(empties, SHAPE, 2)
        empties.hold(True)
        await filled(empties, SHAPE, 0)
        assert sorted(stock.ended) == ["empty-1", "empty-2"]
        assert empties.take(SHAPE) is None  # a demand that waits
        for _ in range(20):
            await asyncio.sleep(0)
        assert stock.made == 2
        empties.hold(False)
        await filled(empties, SHAPE, 2)
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_no_empties() -> None:
    stock = Stock()
    empties = Empties(most=0, make=stock.make, end=stock.end, clock=ManualClock())
    assert empties.take(SHAPE) is None
    await empties.drain()
    assert stock.made == 0


def record(name: str) -> MachineRecord:
    egress = EgressPolicy(
        allow=(IPv4Network("1.1.1.1/32"),), deny=(IPv4Network("0.0.0.0/0"),), allow_internet=False
    )
    return MachineRecord(name, f"empty-{name}", 7, "10.200.0.30", SHAPE, egress, cut=True)


def test_records_survive_a_restart(tmp_path: Path) -> None:
    records = MachineRecords(tmp_path)
    records.load()
    for name in ("a", "b"):
        records.put(record(name))
    records.remove("b")
    records.remove("b")
    (tmp_path / "broken.json").write_text("{")
    again = MachineRecords(tmp_path)
    again.load()
    assert again.all() == [record("a")]
    assert again.by_container("empty-a") == record("a")
    assert not (tmp_path / "broken.json").exists()
    again.change("a", cut=False)
    again.change("nobody", cut=False)
    final = MachineRecords(tmp_path)
    final.load()
    assert [r.cut for r in final.all()] == [False]


@pytest.mark.parametrize("name", ["../x", ".x", "a/b"])
def test_records_stay_in_their_directory(tmp_path: Path, name: str) -> None:
    records = MachineRecords(tmp_path)
    records.load()
    with pytest.raises(ValueError, match="machine name"):
        records.put(record(name))


async def test_binaries_are_kept_by_content(tmp_path: Path) -> None:
    hashes = FileHashes()
    binaries = Binaries(tmp_path / "bin", hashes)
    source = tmp_path / "envd"
    source.write_text("one")
    first = await binaries.install(source)
    assert await binaries.install(source) == first
    source.write_text("two!")
    second = await binaries.install(source)
    assert binaries.installed("envd") == sorted([first, second])
    assert binaries.path("envd", first).read_text() == "one"
    await hashes.check(binaries.path("envd", first), first, "envd")
    binaries.path("envd", first).write_text("changed")
    with pytest.raises(SnapshotUnusable, match="damaged") as refused:
        await hashes.check(binaries.path("envd", first), first, "envd")
    assert str(tmp_path) not in refused.value.message  # clients read it
    source.write_text("one")
    assert await binaries.install(source) == first
    await hashes.check(binaries.path("envd", first), first, "envd")
    assert [path.name for path in (tmp_path / "bin" / "envd").glob(".*")] == []
    with pytest.raises(SnapshotUnusable, match="not on this node"):
        await hashes.check(binaries.path("envd", "0" * 64), "0" * 64, "envd")


async def test_a_link_to_a_file_is_no_change_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers share images by links: one that starts must not have the others read theirs again."""
    path, hashes = tmp_path / "image", FileHashes()
    path.write_text("content")
    sha256 = await hashes.sha256(path)
    monkeypatch.setattr("forkyard.drivers.gvisor.binaries._sha256", lambda _path: "read again")
    os.link(path, tmp_path / "link")
    assert await hashes.sha256(path) == sha256
    (tmp_path / "link").unlink()
    assert await hashes.sha256(path) == sha256
    stat = path.stat()
    path.write_text("another")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert await hashes.sha256(path) == "read again"


def test_container_files(tmp_path: Path) -> None:
    files = ContainerFiles(tmp_path / "a")
    assert files.phase() is None
    files.make({"root": {"path": "rootfs"}})
    with pytest.raises(FileExistsError):
        files.make({"root": {"path": "rootfs"}})
    assert (files.phase(), files.pids()) == (Phase.CREATING, [])
    me = ProcessHandle.of(os.getpid())
    files.write(Phase.RUNNING, cgroup="/x", pids=[me, me])
    files.write(Phase.ENDING)
    assert (files.phase(), files.pids()) == (Phase.ENDING, [me, me])
    kept = json.loads((files.path / "keeper.json").read_text())
    assert kept["cgroup"] == "/x"
    assert kept["created_at"].endswith("Z")
    (files.path / "s_sandbox:s.state").write_text(
        json.dumps({"sandbox": {"pid": os.getpid()}, "goferPid": 0})
    )
    assert files.state_pids() == [me]
    (files.path / "keeper.json").write_text("[")
    assert files.phase() is None
