"""A gVisor driver on a data directory of its own, with a root image that has nothing in it: envd comes from outside."""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path

from forkyard.base.ids import random_text
from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.driver import GvisorDriver, process_of
from forkyard.sandboxes.driver import EgressPolicy, Handle, MachineSpec

BINARIES = Path(__file__).resolve().parents[3] / "build/bin"


def missing() -> str:
    """Why machines cannot be run here; "" if they can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("mkfs.erofs", "nft"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    absent = [name for name in ("keeper", "envd") if not (BINARIES / name).exists()]
    return f"needs build/bin/{absent[0]}: run scripts/build-go.sh" if absent else ""


def make_image(directory: Path) -> Path:
    tree = directory / "tree"
    for name in ("proc", "sys", "dev", "tmp", "etc", "root", "usr/lib/forkyard", "run/forkyard/volumes"):
        (tree / name).mkdir(parents=True)
    (tree / "tmp/.keep").touch()
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    path = directory / "root.erofs"
    subprocess.run(["mkfs.erofs", "-Enoinline_data", path, tree], check=True, capture_output=True)
    return path


class GvisorBench:
    def __init__(self, root: Path, image: Path, *, keeper: bool) -> None:
        self.config = GvisorConfig(
            instance=random_text(6),
            data_dir=root,
            node_dir=root / "node",
            run_dir=root / "run",
            log_dir=root / "log",
            binaries=BINARIES,
            subnets=IPv4Network("10.214.0.0/20"),
            keeper=keeper,
        )
        self.sha256 = hashlib.sha256(image.read_bytes()).hexdigest()
        self.directory = root / "snapshots"
        for path in (
            self.config.run_dir,
            self.config.log_dir,
            self.directory,
            self.config.node_dir / "images",
        ):
            path.mkdir(parents=True)
        shutil.copy(image, self.config.node_dir / "images" / f"{self.sha256}.erofs")
        self.driver = GvisorDriver(self.config)

    def spec(self, name: str) -> MachineSpec:
        shape = self.driver.shape(image=self.sha256, vcpus=2, memory_mb=256, disk_mb=512)
        return MachineSpec(name, shape, EgressPolicy())

    async def kill(self, handle: Handle) -> None:
        assert process_of(handle).send(signal.SIGKILL)

    async def reopen(self) -> None:
        await self.driver.close()
        self.driver = GvisorDriver(self.config)
        await self.driver.open()

    async def left(self, name: str) -> list[str]:
        node = self.config.node_dir
        patterns = (
            (node, f"keeper/*/{name}"),
            (node, f"machines/{name}.json"),
            (node, f"volumes/{name}"),
            (Path("/sys/fs/cgroup"), f"*/forkyard-{self.config.instance}/{name}"),
        )
        return [str(path) for root, pattern in patterns for path in root.glob(pattern)]


@asynccontextmanager
async def opened(image: Path, *, keeper: bool) -> AsyncGenerator[GvisorBench, None]:
    """A bench with its driver open; at the end nothing of it is left."""
    root = Path(tempfile.mkdtemp(prefix="fyd-"))  # short: sockets lie in it
    bench = GvisorBench(root, image, keeper=keeper)
    await bench.driver.open()
    try:
        yield bench
    finally:
        for handle in await bench.driver.list_handles():
            await bench.driver.destroy(handle)
        await bench.driver.close()
        await asyncio.to_thread(shutil.rmtree, root)
