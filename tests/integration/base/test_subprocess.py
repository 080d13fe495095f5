"""Running real programs: bounds, and nothing left behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from forkyard.base import subprocess
from forkyard.base.subprocess import CommandFailed, CommandTimeout, run_command


async def test_output_input_environment_and_folder(tmp_path: Path) -> None:
    result = await run_command(
        ["sh", "-c", "cat; echo $A >&2; pwd"],
        timeout=10,
        stdin=b"in\n",
        env={"A": "b", "PATH": os.defpath},
        cwd=tmp_path,
    )
    assert result.check() is result
    assert result.stdout.decode() == f"in\n{tmp_path}\n"
    assert result.stderr == b"b\n"
    assert not result.truncated


async def test_arguments_are_not_given_to_a_shell() -> None:
    assert (await run_command(["echo", "$HOME; ls *"], timeout=10)).stdout == b"$HOME; ls *\n"


async def test_failure_says_what_the_program_said() -> None:
    result = await run_command(["sh", "-c", "echo no such image >&2; exit 3"], timeout=10)
    assert result.returncode == 3
    with pytest.raises(CommandFailed, match="exit code 3: no such image") as caught:
        result.check()
    assert caught.value.result is result
    with pytest.raises(CommandFailed, match="signal SIGTERM"):
        (await run_command(["sh", "-c", "kill $$"], timeout=10)).check()


async def test_a_missing_program_is_named() -> None:
    with pytest.raises(CommandFailed, match="no-such-program"):
        await run_command(["no-such-program"], timeout=10)


async def test_output_beyond_the_limit_is_dropped_and_the_program_goes_on() -> None:
    program = "import sys; sys.stdout.buffer.write(b'x' * 5_000_000); sys.stderr.write('done')"
    result = await run_command([sys.executable, "-c", program], timeout=30, max_output=1000)
    assert result.stdout == b"x" * 1000
    assert result.stderr == b"done"
    assert result.truncated


async def test_a_program_that_does_not_read_its_input_is_no_error() -> None:
    assert (await run_command(["true"], timeout=10, stdin=b"x" * 5_000_000)).returncode == 0


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while not gone(pid):
            await asyncio.sleep(0.01)


async def read_pid(file: Path) -> int:
    async with asyncio.timeout(10):
        while not file.exists() or not file.read_text().strip():  # noqa: ASYNC240
            await asyncio.sleep(0.01)
    return int(file.read_text())  # noqa: ASYNC240


async def test_a_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(CommandTimeout, match=r"sh took longer than 0\.5 s"):
        await run_command(["sh", "-c", f"sleep 1000 & echo $! > {pid_file}; wait"], timeout=0.5)
    await wait_until_gone(await read_pid(pid_file))


async def test_cancellation_kills_the_whole_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.create_task(
        run_command(["sh", "-c", f"trap '' TERM; sleep 1000 & echo $! > {pid_file}; wait"], timeout=100)
    )
    pid = await read_pid(pid_file)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await wait_until_gone(pid)


async def test_a_descendant_that_keeps_the_output_open_does_not_hold_us_up(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with asyncio.timeout(10):
        result = await run_command(["sh", "-c", f"sleep 1000 & echo $! > {pid_file}; echo out"], timeout=100)
    assert (result.returncode, result.stdout) == (0, b"out\n")
    await wait_until_gone(await read_pid(pid_file))


async def test_nor_does_one_that_left_the_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with asyncio.timeout(10):
        result = await run_command(
            ["sh", "-c", f"setsid sleep 1000 & echo $! > {pid_file}; sleep 0.1; echo out"], timeout=100
        )
    assert (result.returncode, result.stdout) == (0, b"out\n")
    os.kill(await read_pid(pid_file), signal.SIGKILL)


async def test_no_descriptor_is_closed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it may be one that another thread has just opened."""
    twice: list[int] = []

    class Watched(subprocess.FileIO):
        def close(self) -> None:
            if not self.closed:
                try:
                    os.fstat(self.fileno())
                except OSError:
                    twice.append(self.fileno())
            super().close()

    monkeypatch.setattr(subprocess, "FileIO", Watched)
    result = await run_command(["cat"], stdin=b"text", timeout=10)
    assert result.stdout == b"text"
    for _ in range(50):  # what is closed behind the call
        await asyncio.sleep(0)
    assert twice == []
