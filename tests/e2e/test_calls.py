"""Recorded calls on real sandboxes: whatever happens to the server, the edge and the sandbox, the output is whole, the
exit code is right, and one start is one process."""

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Generator
from typing import Self
from uuid import uuid4

import pytest
from e2b import Sandbox

from forkyard.base.clock import SystemClock
from forkyard.guest.calls import Call, CallOutput, Signal, StartCall
from forkyard.guest.client import GuestClient
from forkyard.guest.errors import CallNotFound, GuestRefused
from tests.e2e.inside import only_child, output
from tests.e2e.server import ServerProcess
from tests.faults.inspection import address_of_sandbox, pid_of_program

SIZE = 10 << 20
PATTERN = hashlib.shake_128(b"a recorded call").digest(SIZE)
WANT = hashlib.sha256(PATTERN).hexdigest()

# Writes the pattern over some seconds, a line to standard error with each part, and leaves a line for its run.
WRITER = """
import hashlib, os, sys, time
seconds = float(sys.argv[1])
open("/home/user/ran", "a").write(f"{os.getpid()}\\n")
data = hashlib.shake_128(b"a recorded call").digest(10 << 20)
for part in range(100):
    sys.stdout.buffer.write(data[len(data) * part // 100 : len(data) * (part + 1) // 100])
    sys.stdout.flush()
    sys.stderr.write(f"{part}\\n")
    sys.stderr.flush()
    time.sleep(seconds / 100)
sys.exit(7)
"""
STDERR = "".join(f"{part}\n" for part in range(100)).encode()


class Guests:
    """`GuestClient` without await: what a sandbox's address is takes a loop of its own to find out."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._client = GuestClient(SystemClock())

    def __enter__(self) -> Self:
        self._runner.run(self._client.open())
        return self

    def __exit__(self, *_error: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def start(self, address: str, call_id: str, start: StartCall) -> Call:
        return self._runner.run(self._client.start_call(address, call_id, start, timeout_s=10))

    def read(self, address: str, call_id: str, stdout: int = 0, stderr: int = 0) -> CallOutput:
        read = self._client.read_call(address, call_id, stdout=stdout, stderr=stderr, wait_s=5, timeout_s=10)
        return self._runner.run(read)

    def signal(self, address: str, call_id: str, name: Signal) -> None:
        self._runner.run(self._client.signal_call(address, call_id, name, timeout_s=10))

    def acknowledge(self, address: str, call_id: str) -> None:
        self._runner.run(self._client.acknowledge_call(address, call_id, timeout_s=10))


@pytest.fixture(scope="module")
def guests() -> Generator[Guests]:
    with Guests() as guests:
        yield guests


class Recorded:
    """A call in a sandbox, by the address at which the sandbox is now."""

    def __init__(self, guests: Guests, server: ServerProcess, sandbox: Sandbox) -> None:
        self._guests, self._server, self._sandbox = guests, server, sandbox
        self._id = f"call-{uuid4().hex}"
        self.out, self.err = b"", b""
        sandbox.files.write("/home/user/writer.py", WRITER)

    @property
    def address(self) -> str:
        return address_of_sandbox(self._server.data_dir, self._sandbox.sandbox_id)

    def start(self, seconds: float) -> Call:
        start = StartCall("python3", ["/home/user/writer.py", str(seconds)], user="user")
        return self._guests.start(self.address, self._id, start)

    def read(self, least: int = SIZE) -> Call:
        """Read on until there is that much, or all."""
        while True:
            read = self._guests.read(self.address, self._id, stdout=len(self.out), stderr=len(self.err))
            self.out += read.stdout.data
            self.err += read.stderr.data
            assert (read.stdout.cut, read.stderr.cut) == (None, None)
            whole = (len(self.out), len(self.err)) == (read.stdout.total, read.stderr.total)
            if len(self.out) >= least and (least < SIZE or (whole and not read.call.running)):
                return read.call

    def exited(self) -> Call:
        """Wait for its end without reading anything."""
        beyond = 1 << 40
        while True:
            read = self._guests.read(self.address, self._id, stdout=beyond, stderr=beyond)
            assert (read.stdout.data, read.stderr.data) == (b"", b"")
            if not read.call.running:
                return read.call

    def check_end(self, call: Call) -> None:
        """All of it arrived, of one process; and once acknowledged nothing is left."""
        assert hashlib.sha256(self.out).hexdigest() == WANT
        assert self.err == STDERR
        assert (call.running, call.exit_code, call.signal, call.timed_out) == (False, 7, None, False)
        assert output(self._sandbox, "wc -l < ran") == "1"
        for _ in range(2):
            self._guests.acknowledge(self.address, self._id)
        with pytest.raises(CallNotFound):
            self._guests.read(self.address, self._id)
        recorded = "find /var/lib/forkyard -type f | wc -l"
        assert output(self._sandbox, recorded, user="root") == "0"


@pytest.fixture
def recorded(guests: Guests, server: ServerProcess, sandbox: Sandbox) -> Recorded:
    return Recorded(guests, server, sandbox)


def test_across_pauses_it_goes_on(recorded: Recorded, sandbox: Sandbox) -> None:
    began = recorded.start(2)
    for part in (1, 4):
        recorded.read(SIZE * part // 10)
        sandbox.pause()
        sandbox.connect(timeout=300)
    assert (recorded.start(2)).pid == began.pid
    recorded.check_end(recorded.read())


def test_a_fork_has_the_call_too_and_both_end(
    guests: Guests, server: ServerProcess, recorded: Recorded, sandbox: Sandbox
) -> None:
    recorded.start(1)
    recorded.read(SIZE // 10)
    child = only_child(sandbox)
    try:
        twin = Recorded(guests, server, child)
        twin._id = recorded._id
        twin.check_end(twin.read())
        recorded.check_end(recorded.read())
    finally:
        child.kill()


@pytest.mark.parametrize("seconds", [1.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_what_is_written_while_no_server_runs_is_whole(
    recorded: Recorded, server: ServerProcess, seconds: float
) -> None:
    """Server and edge are killed before the first read, and the next ones come after the last byte."""
    began = recorded.start(seconds)
    edge = pid_of_program(server.data_dir, "edge")
    server.kill()
    os.kill(edge, signal.SIGKILL)
    ended = recorded.exited()
    assert ended.ended_at is not None
    assert (ended.ended_at - ended.started_at).total_seconds() >= seconds
    server.start()
    # Whoever did not hear the answer to its start asks again.
    again = recorded.start(seconds)
    assert (again.pid, again.started_at, again.running) == (began.pid, began.started_at, False)
    recorded.check_end(recorded.read())


def test_a_killed_edge_is_not_noticed(recorded: Recorded, server: ServerProcess) -> None:
    recorded.start(1)
    recorded.read(SIZE // 10)
    os.kill(pid_of_program(server.data_dir, "edge"), signal.SIGKILL)
    recorded.check_end(recorded.read())


def test_a_pause_without_memory_ends_it_and_keeps_what_it_wrote(recorded: Recorded, sandbox: Sandbox) -> None:
    recorded.start(60)
    recorded.read(SIZE // 100)
    sandbox.pause(keep_memory=False)
    sandbox.connect(timeout=300)
    call = recorded.exited()
    assert (call.exit_code, call.signal) == (None, "SIGTERM")
    assert PATTERN.startswith(recorded.out)


def test_signals_times_and_what_is_refused(guests: Guests, server: ServerProcess, sandbox: Sandbox) -> None:
    address = address_of_sandbox(server.data_dir, sandbox.sandbox_id)

    def ended(call_id: str, start: StartCall) -> Call:
        guests.start(address, call_id, start)
        if start.timeout_ms is None and start.stdin is None:
            guests.signal(address, call_id, "SIGINT")
        while True:
            read = guests.read(address, call_id, stdout=1 << 40)
            if not read.call.running:
                guests.acknowledge(address, call_id)
                return read.call

    assert (ended("int", StartCall("sleep", ["60"]))).signal == "SIGINT"
    late = ended("late", StartCall("sleep", ["60"], timeout_ms=200))
    assert (late.timed_out, late.exit_code) == (True, None)
    assert (ended("in", StartCall("grep", ["-q", "wanted"], stdin=b"is wanted\n"))).exit_code == 0
    for start in (StartCall("true", user="nobody-such"), StartCall("true", cwd="/none")):
        with pytest.raises(GuestRefused) as refused:
            guests.start(address, "never", start)
        assert not isinstance(refused.value, CallNotFound)
    with pytest.raises(CallNotFound):
        guests.signal(address, "never", "SIGTERM")
    began = time.monotonic()
    guests.start(address, "runs", StartCall("sleep", ["60"]))
    guests.acknowledge(address, "runs")
    assert time.monotonic() - began < 5
    assert output(sandbox, "pgrep -x sleep || true") == ""
