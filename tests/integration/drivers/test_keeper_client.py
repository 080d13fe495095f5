"""The keeper's client against a keeper that answers as the test wants."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.keeper import Keeper, KeeperAway
from forkyard.drivers.gvisor.runtime import ContainerRequest
from forkyard.host.addresses import AddressPool

RUNTIME = "a" * 64


class Stub:
    """Answers `GET /v1/info`; every other request is noted, and its connection cut."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.decode().split(" ", 2)
                length = next((int(v) for k, v in _fields(head) if k == "content-length"), 0)
                await reader.readexactly(length)
                if path != "/v1/info":
                    self.asked.append(method)
                    return
                body = json.dumps({"pid": os.getpid()}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def _fields(head: bytes) -> list[tuple[str, str]]:
    lines = [line.partition(":") for line in head.decode().split("\r\n")[1:]]
    return [(name.lower(), value.strip()) for name, _, value in lines]


@asynccontextmanager
async def listening(stub: Stub, path: Path) -> AsyncIterator[None]:
    async with await asyncio.start_unix_server(stub.serve, path):
        yield


@pytest.fixture
def config(tmp_path: Path) -> GvisorConfig:
    return GvisorConfig(
        "abc123", tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, IPv4Network("10.200.0.0/16")
    )


def request() -> ContainerRequest:
    slot = AddressPool("abc123", IPv4Network("10.200.0.0/16")).slot(0)
    return ContainerRequest({}, "/log", 1, slot)


async def test_a_container_is_asked_for_once_when_the_keeper_dies_of_it(config: GvisorConfig) -> None:
    """A second keeper would make another one under a name whose end it has just told."""
    stub = Stub()
    keeper = Keeper(config, RUNTIME, Path("/nonexistent"), SystemClock())
    async with listening(stub, config.run_dir / f"keeper-{RUNTIME[:12]}.sock"):
        await keeper.open()
        try:
            with pytest.raises(KeeperAway):
                await keeper.create("x", request())
            assert stub.asked == ["PUT"]
            with pytest.raises(KeeperAway):
                await keeper.delete("x")
            assert stub.asked == ["PUT", "DELETE", "DELETE"]
        finally:
            await keeper.close()
