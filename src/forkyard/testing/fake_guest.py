"""The daemons inside the machines of a `FakeHost`, called as `guest/client.py` calls the real ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict

from forkyard.guest.client import GuestIdentity
from forkyard.guest.errors import GuestRefused, GuestUnreachable
from forkyard.testing.fake_host import FakeHost, FakeMachine
from forkyard.testing.faults import Life

VERSION = "0.6.13"


class FakeGuests:
    """Stands in for `GuestClient`. Calls: `guest.<method>`, subject the machine (or the address, if none is there).

    A daemon that would not answer in time fails its call at once: no test waits for a timeout.
    """

    def __init__(self, host: FakeHost, life: Life | None = None) -> None:
        self._host = host
        self._life = life or Life(host.faults)

    async def init(self, address: str, identity: GuestIdentity, *, timeout_s: float) -> str:
        async with self._call("init", address) as machine:
            known = machine.identity
            if known is not None and known.generation > identity.generation:
                raise GuestRefused(f"generation {identity.generation} is older than {known.generation}")
            machine.inside.identity = asdict(identity)
            machine.inside.refusing = False
            return VERSION

    async def health(self, address: str, *, timeout_s: float) -> bool:
        try:
            async with self._call("health", address):
                return True
        except (GuestUnreachable, GuestRefused):
            return False

    async def quiesce(self, address: str, *, timeout_s: float) -> None:
        async with self._call("quiesce", address):
            pass

    async def rehearse(self, address: str, *, timeout_s: float) -> None:
        async with self._call("rehearse", address):
            pass

    async def end_processes(self, address: str, *, grace_ms: int, timeout_s: float) -> None:
        async with self._call("end_processes", address) as machine:
            machine.inside.end_processes()

    async def memory_pressure(self, address: str, *, timeout_s: float) -> None:
        async with self._call("memory_pressure", address):
            pass

    @asynccontextmanager
    async def _call(self, method: str, address: str) -> AsyncGenerator[FakeMachine]:
        machine = self._host.at(address)
        async with self._life.call(f"guest.{method}", machine.name if machine else address):
            machine = self._host.at(address)
            if machine is None or machine.silent:
                raise GuestUnreachable(f"no answer from {address}")
            yield machine
