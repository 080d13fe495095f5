"""The floor: sandboxes by the plain `runsc` command line, with the OCI spec, network and cgroup that the driver gives.

Nothing of the server is involved but its files: the root image, the daemon, and the snapshots it made. `runsc` is
gVisor as it is published, without what this project changes in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from benchmarks.http import ENVD_PORT, reach_directly
from forkyard.base.ids import random_text
from forkyard.drivers.gvisor.config import NODE
from forkyard.drivers.gvisor.spec import oci_spec
from forkyard.host import namespaces
from forkyard.host.addresses import PREFIX_LENGTH, AddressPool, Slot
from forkyard.host.cgroups import hierarchies
from forkyard.host.netlink import links
from forkyard.host.netlink.connection import ROUTE, NetlinkConnection
from forkyard.host.reservations import Reservations
from forkyard.host.slots import GUEST_INTERFACE, Slots
from forkyard.sandboxes.driver import Shape

T = TypeVar("T")

STOCK_RUNSC = Path(__file__).parents[1] / "build/bin/runsc-stock"
SUBNETS = IPv4Network("10.231.0.0/16")
_NEW_NAMESPACE, _BIND, _RECURSIVE, _SLAVE = 0x00020000, 4096, 16384, 1 << 19
_SUBREAPER = 36
_SAVE = ("checkpoint", "--compression=none", "--exclude-committed-zero-pages")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class RawSandbox:
    """A container of the floor, and its slot."""

    id: str
    slot: Slot

    @property
    def address(self) -> str:
        return str(self.slot.address)


class Floor:
    """`runsc` on the node files of a server, for one shape of machine. Nothing of it is left at the end."""

    def __init__(self, node_dir: Path, shape: Shape, *, parallel: int = 20) -> None:
        self._node_dir = node_dir
        self._shape = shape
        self._binary = STOCK_RUNSC
        self._instance = random_text(6)
        self._root = Path(tempfile.mkdtemp(prefix="fyb-"))  # short: sockets lie in it
        self._slots = Slots(AddressPool(self._instance, SUBNETS), Reservations(self._instance, self._root))
        self._threads = ThreadPoolExecutor(parallel, initializer=self._enter)
        self._free: list[Slot] = []
        self._live: dict[str, RawSandbox] = {}

    def __enter__(self) -> Floor:
        # A sandbox is an orphan of the command that starts it, and runsc waits for whoever reaps it.
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self._slots.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sandbox in list(self._live.values()):
            self.delete(sandbox)
        self._threads.shutdown()
        self._slots.remove(self._free)
        self._slots.close()
        for root in _cgroup_roots():
            with suppress(OSError):
                (root / self._group).rmdir()
        shutil.rmtree(self._root, ignore_errors=True)

    # -- what is measured ----------------------------------------------------------------------------

    def create(self, sandbox: RawSandbox) -> None:
        """An empty container, ready for a restore or a start."""
        self._run(sandbox, "create", "--bundle", str(self._bundle(sandbox)), sandbox.id)

    def start(self, sandbox: RawSandbox) -> None:
        self._run(sandbox, "start", sandbox.id)

    def restore(self, sandbox: RawSandbox, snapshot: Path) -> None:
        """Into the created container, or in its own if it was not created."""
        self._run(
            sandbox,
            *("restore", "--detach", "--bundle", str(self._bundle(sandbox)), f"--image-path={snapshot}"),
            sandbox.id,
        )

    def reach(self, sandbox: RawSandbox, port: int = ENVD_PORT, path: str = "/health") -> None:
        reach_directly(sandbox.address, port, path)

    def checkpoint(self, sandbox: RawSandbox, directory: Path) -> None:
        """Leaving it running."""
        self._run(sandbox, *_SAVE, "--leave-running", f"--image-path={directory}", sandbox.id)

    def execute(self, sandbox: RawSandbox, *command: str) -> None:
        self._run(sandbox, "exec", sandbox.id, *command)

    def delete(self, sandbox: RawSandbox) -> None:
        """Kill, reap, and delete; its slot is used again."""
        for pid in self.pids(sandbox):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._run(sandbox, "delete", "--force", sandbox.id)
        if self._live.pop(sandbox.id, None) is not None:
            shutil.rmtree(self._root / sandbox.id, ignore_errors=True)
            self._free.append(sandbox.slot)

    # -- around it -----------------------------------------------------------------------------------

    def prepare(self) -> RawSandbox:
        """Bundle, address and slot of a container that is not made yet."""
        slot = self._free.pop() if self._free else self._slots.create()
        sandbox = RawSandbox(random_text(8), slot)
        self._live[sandbox.id] = sandbox
        bundle = self._bundle(sandbox)
        (bundle / "rootfs").mkdir(parents=True)
        (bundle / "volumes").mkdir()
        spec = oci_spec(
            self._shape,
            netns=slot.netns_path,
            cgroup=f"/{self._group}/{sandbox.id}",
            volumes=str(bundle / "volumes"),
        )
        (bundle / "config.json").write_text(json.dumps(spec))
        self.address(sandbox)
        return sandbox

    def address(self, sandbox: RawSandbox) -> None:
        """runsc takes the address off the interface at every start and restore."""

        def inside() -> None:
            index = socket.if_nametoindex(GUEST_INTERFACE)
            with NetlinkConnection(ROUTE) as connection:
                connection.change(
                    [
                        links.set_address(index, sandbox.slot.address, PREFIX_LENGTH),
                        links.link_up(index),
                        links.set_default_route(index, sandbox.slot.gateway),
                    ]
                )

        namespaces.enter(sandbox.slot.namespace, inside)

    def restored(self, snapshot: Path) -> RawSandbox:
        """A running sandbox from a snapshot, answering."""
        sandbox = self.prepare()
        self.restore(sandbox, snapshot)
        self.reach(sandbox)
        return sandbox

    def pids(self, sandbox: RawSandbox) -> list[int]:
        """Sandbox and gofer."""
        found: list[int] = []
        for path in (self._root / sandbox.id).glob("*.state"):
            state: Any = json.loads(path.read_bytes())
            found += [pid for pid in (state["sandbox"]["pid"], state["goferPid"]) if pid > 0]
        return found

    def group_pids(self, sandbox: RawSandbox) -> list[int]:
        """All processes of its cgroup."""
        return cgroup_pids(f"{self._group}/{sandbox.id}")

    def together(self, work: Callable[[T], None], items: Sequence[T], parallel: int) -> None:
        """`work` on each item, `parallel` at a time. Raises what the first failure raised."""
        with ThreadPoolExecutor(parallel) as pool:
            for future in [pool.submit(work, item) for item in items]:
                future.result()

    def scratch(self, name: str) -> Path:
        return self._root / name

    @property
    def _group(self) -> str:
        return f"fybench-{self._instance}"

    def _bundle(self, sandbox: RawSandbox) -> Path:
        return self._root / sandbox.id / "bundle"

    def _run(self, sandbox: RawSandbox, *command: str) -> None:
        future: Future[None] = self._threads.submit(self._command, sandbox, command)
        future.result()

    def _command(self, sandbox: RawSandbox, command: Sequence[str]) -> None:
        directory = self._root / sandbox.id
        arguments = [
            str(self._binary),
            f"--root={directory}",
            "--network=sandbox",
            "--platform=systrap",
            "--directfs=true",
            f"--overlay2=root:dir={NODE}/disks",
            "--file-access=exclusive",
            "--host-uds=none",
            "--allow-suid=true",
            "--net-disconnect-ok=true",
            "--host-settings=ignore",
            f"--log={directory}/runtime.log",
            *command,
        ]
        output = directory / "output"
        with output.open("ab") as said:  # a file: the sandbox keeps it for its life
            done = subprocess.run(
                arguments,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                close_fds=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        if done.returncode != 0:
            raise RuntimeError(
                f"runsc {command[0]} ended with {done.returncode}: {output.read_text()[-2000:]}"
            )

    def _enter(self) -> None:
        """Give this thread a mount namespace in which the node's files lie where the keeper has them."""
        if _libc.unshare(_NEW_NAMESPACE) != 0:
            raise OSError(ctypes.get_errno(), "a mount namespace")
        _mount(b"none", b"/", _SLAVE | _RECURSIVE)
        NODE.mkdir(parents=True, exist_ok=True)
        _mount(bytes(self._node_dir), bytes(NODE), _BIND | _RECURSIVE)


def cgroup_pids(path: str) -> list[int]:
    for root in _cgroup_roots():
        with suppress(OSError):
            return [int(pid) for pid in (root / path / "cgroup.procs").read_text().split()]
    return []


def _cgroup_roots() -> list[Path]:
    return sorted(set(hierarchies().by_controller.values()))


def _mount(source: bytes, target: bytes, flags: int) -> None:
    if _libc.mount(source, target, None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mounting {target.decode()}")
