"""A driver whose machines are plain objects. It keeps the contract of `sandboxes/driver.py`, and writes real files."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forkyard.sandboxes.driver import (
    CheckpointFile,
    CheckpointResult,
    DriverError,
    EgressPolicy,
    Handle,
    HostFull,
    MachineEvent,
    MachineLost,
    MachineSpec,
    MachineStats,
    MachineStatus,
    Shape,
    SnapshotUnusable,
)
from forkyard.testing.fake_host import FakeHost, FakeMachine, Inside, copy_of, dump, load
from forkyard.testing.faults import Call, Fault, Life

STATE_FILE = "state.json"
PAGES_FILE = "pages.img"

_NAME = re.compile(r"[a-z0-9-]{1,64}")


class FakeDriver:
    """Machines of one host, as one run of the server sees them. Calls: `driver.<method>`, subject the machine."""

    name = "fake"

    def __init__(self, host: FakeHost, life: Life | None = None) -> None:
        self._host = host
        self._life = life or Life(host.faults)
        self._events: asyncio.Queue[MachineEvent | None] = asyncio.Queue()
        self._prepared: dict[Shape, int] = {}
        self._held = False
        self._open = False

    # -- Driver --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._host.listen(self._events.put_nowait)
        self._open = True

    async def close(self) -> None:
        self._host.unlisten(self._events.put_nowait)
        self._prepared.clear()
        self._open = False
        self._events.put_nowait(None)

    async def ping(self) -> None:
        async with self._life.call("driver.ping"):
            pass

    def shape(self, *, image: str, vcpus: int, memory_mb: int, disk_mb: int) -> Shape:
        return Shape(image, self._host.envds[-1], self._host.runtimes[-1], vcpus, memory_mb, disk_mb)

    async def create(self, spec: MachineSpec) -> Handle:
        async with self._life.call("driver.create", spec.name), self._host.lock(spec.name):
            self._check_new(spec)
            return self._host.add(spec, Inside(files={"/etc/image": spec.shape.image})).handle

    async def inspect(self, handle: Handle) -> MachineStatus:
        async with self._life.call("driver.inspect", handle.name):
            machine = self._host.machines.get(handle.name)
            if machine is None:
                return MachineStatus(False, "unknown")
            return MachineStatus(machine.alive, machine.reason)

    async def destroy(self, handle_or_name: Handle | str) -> None:
        name = handle_or_name if isinstance(handle_or_name, str) else handle_or_name.name
        async with self._life.call("driver.destroy", name), self._host.lock(name):
            self._host.remove(name)

    async def list_handles(self) -> Sequence[Handle]:
        async with self._life.call("driver.list_handles"):
            return [machine.handle for machine in self._host.machines.values()]

    async def events(self) -> AsyncIterator[MachineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def watch(self, handle: Handle) -> None:
        async with self._life.call("driver.watch", handle.name):
            self._machine(handle).watched = True

    # -- Checkpoint, Restore -------------------------------------------------------------------------

    async def checkpoint(
        self, handle: Handle, directory: Path, *, leave_running: bool = True
    ) -> CheckpointResult:
        try:
            directory.mkdir()  # noqa: ASYNC240 - a few bytes
        except FileExistsError as error:
            raise DriverError(f"{directory.name} is there already") from error
        try:
            async with self._host.lock(handle.name), self._life.call("driver.checkpoint", handle.name):
                machine = self._machine(handle)
                data = dump(copy_of(machine.inside), machine.shape)
                # The second half of the call: a machine may die, or the disk fill up, in the middle of it.
                (directory / STATE_FILE).write_bytes(data)
                await asyncio.sleep(0)
                (directory / PAGES_FILE).write_bytes(_pages(machine))
                self._machine(handle)
            if not leave_running:
                machine.alive, machine.reason = False, "checkpointed"
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        files = tuple(CheckpointFile(n, (directory / n).stat().st_size) for n in (STATE_FILE, PAGES_FILE))
        return CheckpointResult(files, {"shape": asdict(machine.shape)})

    def spec_of(
        self, requires: Mapping[str, Any], *, name: str, egress: EgressPolicy, hostname: str = "sandbox"
    ) -> MachineSpec:
        return MachineSpec(name, Shape(**requires["shape"]), egress, hostname)

    async def check(
        self, directory: Path, requires: Mapping[str, Any], files: Sequence[CheckpointFile]
    ) -> None:
        async with self._life.call("driver.check", directory.name):
            shape = Shape(**requires["shape"])
            for what, wanted, there in (
                ("image", shape.image, self._host.images),
                ("envd", shape.envd, self._host.envds),
                ("runtime", shape.runtime, self._host.runtimes),
            ):
                if wanted not in there:
                    raise SnapshotUnusable(f"its {what} {wanted[:12]} is not on this host")
            for file in files:
                path = directory / file.name
                if not path.is_file() or path.stat().st_size != file.size:
                    raise SnapshotUnusable(f"{file.name} is missing or has another size")

    async def restore(self, spec: MachineSpec, directory: Path) -> Handle:
        async with self._host.lock(spec.name):
            made: FakeMachine | None = None
            try:
                async with self._life.call("driver.restore", spec.name):
                    self._check_new(spec)
                    try:
                        inside, shape = load((directory / STATE_FILE).read_bytes())
                    except (OSError, ValueError, KeyError, TypeError) as error:
                        raise SnapshotUnusable(f"{directory.name} cannot be read: {error}") from error
                    if shape != spec.shape:
                        raise SnapshotUnusable("the machine's shape is not the checkpoint's")
                    made = self._host.add(spec, inside)
            except BaseException:
                if made is not None and not self._life.dead:
                    self._host.remove(spec.name)
                raise
            return made.handle

    # -- Network, Stats, Prewarm ---------------------------------------------------------------------

    async def cut(self, handle: Handle) -> None:
        async with self._life.call("driver.cut", handle.name):
            machine = self._machine(handle)
            if self._host.is_routed(machine):
                self._host.violations.append(f"{handle.name} was cut while requests were routed to it")
            machine.cut = True

    async def uncut(self, handle: Handle) -> None:
        async with self._life.call("driver.uncut", handle.name):
            self._machine(handle).cut = False

    async def set_egress(self, handle: Handle, policy: EgressPolicy) -> None:
        async with self._life.call("driver.set_egress", handle.name):
            self._machine(handle).egress = policy

    async def stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        async with self._life.call("driver.stats"):
            return {
                machine.name: MachineStats(
                    cpu_ns=1_000_000 * machine.inside.next_pid,
                    memory=sum(map(len, machine.inside.memory.values())),
                    memory_cache=0,
                    disk=sum(map(len, machine.inside.files.values())),
                )
                for handle in handles
                if (machine := self._host.machines.get(handle.name)) and machine.alive
            }

    def demand(self, shape: Shape, count: int) -> None:
        if count:
            self._prepared[shape] = count
        else:
            self._prepared.pop(shape, None)

    def hold(self, held: bool) -> None:
        self._held = held

    def prepared(self) -> Mapping[Shape, int]:
        return {} if self._held else dict(self._prepared)

    # ------------------------------------------------------------------------------------------------

    def _machine(self, handle: Handle) -> FakeMachine:
        machine = self._host.machines.get(handle.name)
        if machine is None or not machine.alive:
            raise MachineLost(f"{handle.name} is gone: {machine.reason if machine else 'unknown'}")
        return machine

    def _check_new(self, spec: MachineSpec) -> None:
        if not _NAME.fullmatch(spec.name):
            raise DriverError(f"{spec.name!r} is not a name for a machine")
        if spec.name in self._host.machines:
            raise DriverError(f"there is a machine called {spec.name} already")
        if spec.shape.image not in self._host.images:
            raise DriverError(f"image {spec.shape.image[:12]} is not on this host")


def _pages(machine: FakeMachine) -> bytes:
    return repr(sorted(machine.inside.memory.items())).encode() + b"\0" * 512


# -- drivers that misbehave: faults to add to a host ---------------------------------------------------


def full_disk(*, nth: int = 1, times: int = 1) -> Fault:
    """The disk fills up while a checkpoint is written."""
    return Fault("driver.checkpoint", nth, times, after=True, error=HostFull("no space left on device"))


def hanging_checkpoint() -> Fault:
    """A checkpoint that takes until the test releases it."""
    return Fault("driver.checkpoint", held=True)


def dies_during(host: FakeHost, call: str, *, after: bool = False, nth: int = 1) -> Fault:
    """The machine that the call is about dies in the middle of it."""

    def die(about: Call) -> None:
        if about.subject in host.machines:
            host.kill(about.subject, "signal SEGV")

    return Fault(call, nth, after=after, effect=die)


def unrestorable(*, times: int = 0) -> Fault:
    """Restores fail, whatever the check said."""
    return Fault("driver.restore", times=times, error=DriverError("the kernel inside did not start"))


def remove_files(directory: Path) -> None:
    """Damage a snapshot: take one of its files away."""
    os.unlink(directory / PAGES_FILE)
