"""A host in memory: machines, the edge's route table, what is installed. It survives the server, as a real one does.

Several `FakeDriver`s can be opened on one host, one after the other: each stands for a run of the server.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from typing import Any

from forkyard.guest.client import GuestIdentity
from forkyard.sandboxes.driver import (
    EgressPolicy,
    Handle,
    MachineEvent,
    MachineEventKind,
    MachineSpec,
    Shape,
)
from forkyard.sandboxes.routing import Route, RouteState
from forkyard.testing.faults import Faults

IMAGE = hashlib.sha256(b"image").hexdigest()
ENVD = hashlib.sha256(b"envd").hexdigest()
RUNTIME = hashlib.sha256(b"runtime").hexdigest()

_FIRST_ADDRESS = IPv4Address("10.200.0.2")


@dataclass
class Inside:
    """What a checkpoint holds: memory and disk of a machine, and who it thinks it is. JSON."""

    memory: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of its processes: gone when they end."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    processes: dict[str, int] = field(default_factory=dict[str, int])
    """Pid by name."""
    next_pid: int = 2
    identity: dict[str, Any] | None = None
    """What the last `/init` said."""
    entropy: int = 0
    """Differs after each restore, as the kernel's generator does."""
    refusing: bool = False
    """Its daemon has ended the processes, and starts none before the next `/init`."""

    def start(self, process: str) -> int:
        """Start a process; answers its pid."""
        if self.refusing:
            raise AssertionError(f"{process} cannot be started: the daemon has not been told who it is since")
        pid = self.next_pid
        self.next_pid += 1
        self.processes[process] = pid
        return pid

    def end_processes(self) -> None:
        self.processes.clear()
        self.memory.clear()
        self.refusing = True


@dataclass
class FakeMachine:
    """One machine of the host."""

    name: str
    address: str
    shape: Shape
    egress: EgressPolicy
    hostname: str
    inside: Inside = field(default_factory=Inside)
    alive: bool = True
    reason: str = ""
    """Why it is not alive."""
    cut: bool = False
    silent: bool = False
    """Its daemon does not answer."""
    watched: bool = False

    @property
    def handle(self) -> Handle:
        return Handle("fake", self.name, self.address, {"shape": asdict(self.shape)})

    @property
    def identity(self) -> GuestIdentity | None:
        return GuestIdentity(**self.inside.identity) if self.inside.identity else None


class FakeHost:
    """Machines by name, routes by sandbox id, and the rules that nobody may break."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.machines: dict[str, FakeMachine] = {}
        self.routes: dict[str, Route] = {}
        """The edge's table: it outlives the server."""
        self.highest: dict[str, int] = {}
        """The highest generation that the edge has seen of each sandbox."""
        self.images = {IMAGE}
        self.envds = [ENVD]
        """By age, the newest last."""
        self.runtimes = [RUNTIME]
        self.violations: list[str] = []
        """Broken rules; a test that ends with one has failed."""
        self.destroyed: list[str] = []
        self._listeners: list[Callable[[MachineEvent], None]] = []
        self._entropy = 0
        self._generations: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, name: str) -> asyncio.Lock:
        """Calls for one machine are serialised."""
        return self._locks.setdefault(name, asyncio.Lock())

    # -- machines ------------------------------------------------------------------------------------

    def add(self, spec: MachineSpec, inside: Inside) -> FakeMachine:
        """Start a machine, at the lowest free address: an address is used again as soon as it can be."""
        taken = {machine.address for machine in self.machines.values()}
        number = 0
        while (address := str(_FIRST_ADDRESS + 4 * number)) in taken:
            number += 1
        for route in self.routes.values():
            if route.state is RouteState.RUNNING and route.address == address:
                self.violations.append(f"{spec.name} got {address}, to which {route.id} is still routed")
        self._check_generation(spec.name)
        self._entropy += 1
        inside.entropy = self._entropy
        machine = FakeMachine(spec.name, address, spec.shape, spec.egress, spec.hostname, inside)
        self.machines[spec.name] = machine
        return machine

    def _check_generation(self, name: str) -> None:
        sandbox_id, _, generation = name.rpartition("-")
        if len(sandbox_id) == 20 and generation.isdigit():
            if int(generation) <= self._generations.get(sandbox_id, 0):
                self.violations.append(f"{name} was started after generation {self._generations[sandbox_id]}")
            self._generations[sandbox_id] = int(generation)

    def remove(self, name: str) -> None:
        """Take a machine away; missing is fine."""
        machine = self.machines.pop(name, None)
        if machine is None:
            return
        self.destroyed.append(name)
        for route in self.routes.values():
            if route.state is RouteState.RUNNING and route.address == machine.address:
                self.violations.append(f"{name} was destroyed while {route.id} was routed to it")

    def kill(self, name: str, reason: str = "signal KILL") -> None:
        """The machine dies by itself. It is listed until somebody destroys it."""
        machine = self.machines[name]
        if machine.alive:
            machine.alive, machine.reason = False, reason
            self.tell(MachineEvent(MachineEventKind.EXIT, name, reason))

    def at(self, address: str) -> FakeMachine | None:
        """The machine that answers at this address, if one does."""
        for machine in self.machines.values():
            if machine.address == address and machine.alive and not machine.cut:
                return machine
        return None

    def is_routed(self, machine: FakeMachine) -> bool:
        """Whether the edge sends requests to it."""
        return any(
            route.state is RouteState.RUNNING and route.address == machine.address
            for route in self.routes.values()
        )

    def of(self, sandbox_id: str) -> list[FakeMachine]:
        """Living machines that think they are this sandbox."""
        return [
            m
            for m in self.machines.values()
            if m.alive and m.identity and m.identity.sandbox_id == sandbox_id
        ]

    def machine(self, sandbox_id: str) -> FakeMachine:
        """The one machine that requests for this sandbox reach, through the edge's route."""
        route = self.routes.get(sandbox_id)
        machine = self.at(route.address) if route and route.address else None
        if route is None or route.state is not RouteState.RUNNING or machine is None:
            raise AssertionError(f"requests for {sandbox_id} reach no machine: {route}")
        if machine.identity is None or machine.identity.sandbox_id != sandbox_id:
            raise AssertionError(f"requests for {sandbox_id} reach {machine.name} ({machine.identity})")
        return machine

    def power_cut(self) -> None:
        """The host itself goes down: machines and the edge are gone without a word.

        Commits may be lost with it, so that a generation comes again: nothing of the first one is left.
        """
        self.machines.clear()
        self.routes.clear()
        self.highest.clear()
        self._generations.clear()
        self._locks.clear()

    # -- events --------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[MachineEvent], None]) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[MachineEvent], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tell(self, event: MachineEvent) -> None:
        for listener in list(self._listeners):
            listener(event)


def dump(inside: Inside, shape: Shape) -> bytes:
    return json.dumps({"inside": asdict(inside), "shape": asdict(shape)}, sort_keys=True).encode()


def load(data: bytes) -> tuple[Inside, Shape]:
    """Raises ValueError, KeyError or TypeError for what is not a checkpoint."""
    raw = json.loads(data)
    return Inside(**raw["inside"]), Shape(**raw["shape"])


def copy_of(inside: Inside) -> Inside:
    return copy.deepcopy(inside)
