"""Root inside takes all he can get: processes, memory, disk."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from e2b import CommandExitException, Sandbox

from tests.e2e.server import ServerProcess
from tests.faults.hostile.conftest import DISK_MB, MEMORY_MB
from tests.faults.witness import Witness

MEMORY_BOMB = """
import mmap
held = []
while True:
    piece = mmap.mmap(-1, 64 << 20)
    for offset in range(0, 64 << 20, 4096):
        piece[offset] = 1
    held.append(piece)
"""
FAST_BOMB = """
held = []
while True:
    held.append(b"x" * (64 << 20))
"""
FORK_BOMB = """
import os, sys, time
made = 0
try:
    for _ in range(100000):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        made += 1
except OSError as error:
    print(made, error.errno)
"""


@pytest.mark.quick
def test_own_sizes_are_shown(attacker: Sandbox) -> None:
    free = int(attacker.commands.run("free -m | awk '/^Mem/ {print $2}'").stdout)
    assert MEMORY_MB * 0.8 < free <= MEMORY_MB * 1.05
    for path in ("/", "/home/user", "/tmp"):
        size = int(attacker.commands.run(f"df -m --output=size {path} | tail -1").stdout)
        assert DISK_MB * 0.8 < size <= DISK_MB * 1.05, f"df {path} says {size} MB"


@pytest.mark.quick
@pytest.mark.parametrize("bomb", [FAST_BOMB, MEMORY_BOMB], ids=["2-gb-a-second", "page-by-page"])
def test_a_memory_bomb_dies_alone(hostile_server: ServerProcess, bomb: str) -> None:
    witness = Witness.create(hostile_server)
    sandbox = witness.sandbox
    sandbox.files.write("/home/user/bomb.py", bomb)
    for _ in range(3):
        result = sandbox.commands.run("python3 /home/user/bomb.py; echo code $?", timeout=60)
        assert "code 137" in result.stdout
        witness.check()
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("exec python3 /home/user/bomb.py", timeout=60)
    assert killed.value.exit_code in (-1, 137)
    witness.check()
    witness.kill()


@pytest.mark.quick
def test_a_full_disk_costs_no_memory_and_nothing_else(hostile_server: ServerProcess) -> None:
    witness = Witness.create(hostile_server)
    sandbox = witness.sandbox
    before = int(sandbox.commands.run("awk '/MemAvailable/ {print $2}' /proc/meminfo").stdout)
    for folder in ("/home/user", "/tmp"):
        filled = sandbox.commands.run(
            f"dd if=/dev/zero of={folder}/full bs=1M count={DISK_MB * 2} 2>&1 || true", timeout=120
        )
        assert "No space left on device" in filled.stdout
        after = int(sandbox.commands.run("awk '/MemAvailable/ {print $2}' /proc/meminfo").stdout)
        assert before - after < MEMORY_MB * 1024 // 4, f"{(before - after) // 1024} MB of memory are gone"
        sandbox.commands.run(f"rm {folder}/full")
        witness.check()
    assert sandbox.files.write("/home/user/again", "room").path == "/home/user/again"
    witness.kill()


@pytest.mark.slow
def test_a_fork_bomb_hurts_nobody_else(
    hostile_server: ServerProcess, victim: Witness, attacker: Sandbox
) -> None:
    """It meets a limit, or the sandbox dies of it; the host goes on."""
    attacker.files.write("/home/user/forks.py", FORK_BOMB)
    with suppress(Exception):
        attacker.commands.run("python3 /home/user/forks.py", timeout=20)
    victim.check()
    began = time.monotonic()
    attacker.kill()
    assert time.monotonic() - began < 10
    created = Witness.create(hostile_server)
    created.check()
    created.kill()
