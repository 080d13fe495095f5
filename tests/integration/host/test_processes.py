"""Real processes: started detached, waited for, killed, adopted."""
# ruff: noqa: ASYNC222, ASYNC240 - blocking is fine: nothing else runs in these loops

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forkyard.base.ids import new_instance_id
from forkyard.host import cgroups
from forkyard.host.errors import SpawnFailed
from forkyard.host.processes import ProcessHandle, end, kill, listener_of, spawn_detached, wait_exit
from tests.integration.host import lab

SLEEP = ["/bin/sleep", "1000"]


async def test_it_has_a_session_of_its_own_writes_to_its_file_and_is_reaped(tmp_path: Path) -> None:
    process = await spawn_detached(
        ["/bin/sh", "-c", "echo out; echo err >&2; pwd; exec sleep 1000"], output=tmp_path / "log"
    )
    try:
        assert os.getsid(process.pid) == process.pid
        await asyncio.to_thread(
            lab.eventually, lambda: (tmp_path / "log").read_text() == "out\nerr\n/\n", "output in its file"
        )
        assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
        waiting = asyncio.create_task(wait_exit(process))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert process.send(signal.SIGKILL)
        await asyncio.wait_for(waiting, lab.PATIENCE)
        assert not process.alive()
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        assert not process.send(signal.SIGKILL)
        await wait_exit(process)
    finally:
        process.send(signal.SIGKILL)


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpawnFailed, match="/no/such/program"):
        await spawn_detached(["/no/such/program"], output=tmp_path / "log")
    with pytest.raises(SpawnFailed, match="cannot write"):
        await spawn_detached(SLEEP, output=tmp_path / "missing" / "log")


async def test_many_can_wait_and_one_of_them_be_cut_off(tmp_path: Path) -> None:
    process = await spawn_detached(SLEEP, output=tmp_path / "log")
    waiting = [asyncio.create_task(wait_exit(process)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await end(process, grace=lab.PATIENCE)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None, None]


async def test_one_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = await spawn_detached(
        ["/bin/sh", "-c", f"trap '' TERM; : > {ready}; while :; do sleep 0.01; done"], output=tmp_path / "log"
    )
    await asyncio.to_thread(lab.eventually, ready.exists, "the trap to be set")
    await end(process, grace=0.05)
    assert not process.alive()


async def test_it_survives_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from forkyard.host.processes import *\n"
        "p = asyncio.run(spawn_detached(['/bin/sleep', '1000'], output=Path(sys.argv[1]) / 'log'))\n"
        "PidFile(Path(sys.argv[1]) / 'pid').write(p); print(p.pid, p.start_time, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    starter = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        str(tmp_path),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    output, _ = await starter.communicate()
    process = ProcessHandle(*(int(word) for word in output.split()))
    assert process.alive()
    await end(process, grace=lab.PATIENCE)
    assert not process.alive()


@pytest.mark.root
async def test_it_can_leave_our_control_group(tmp_path: Path) -> None:
    group = f"forkyard-{new_instance_id()}-test"
    process = await spawn_detached(SLEEP, output=tmp_path / "log", cgroup=group)
    try:
        assert f"/{group}" in Path(f"/proc/{process.pid}/cgroup").read_text()
    finally:
        await end(process, grace=lab.PATIENCE)
        await cgroups.remove_group(group)
    assert not [root for root in cgroups.hierarchies().roots if (root / group).exists()]


@pytest.mark.root
async def test_the_group_of_a_machine_is_emptied_and_removed(tmp_path: Path) -> None:
    groups = cgroups.MachineGroups(new_instance_id())
    groups.prepare()
    processes = [await spawn_detached(SLEEP, output=tmp_path / "log") for _ in range(3)]
    for name, process in zip(("a", "b", "c"), processes, strict=True):
        for root in cgroups.hierarchies().roots:
            directory = root / groups.path(name)[1:] / "nested"
            directory.mkdir(parents=True, exist_ok=True)
            try:
                (directory / "cgroup.procs").write_text(str(process.pid))
            except OSError:
                continue
    try:
        assert groups.names() == ["a", "b", "c"]
        usage = groups.usage()
        assert usage["a"].memory > 0
        assert await groups.sweep({"b"}) == ["a", "c"]
        assert [process.alive() for process in processes] == [False, True, False]
        await groups.remove("a")
    finally:
        await groups.remove_all()
    assert groups.names() == []
    assert not processes[1].alive()


async def test_who_listens_on_a_socket_is_found_though_he_hangs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert listener_of(path) is None
    program = (
        "import socket, time; s = socket.socket(socket.AF_UNIX);"
        f" s.bind({str(path)!r}); s.listen(); time.sleep(1000)"
    )
    process = await spawn_detached([sys.executable, "-c", program], output=tmp_path / "log")
    try:
        await asyncio.to_thread(lab.eventually, lambda: listener_of(path) is not None, "somebody listens")
        assert listener_of(path) == process
        process.send(signal.SIGSTOP)
        assert listener_of(path) == process
        assert await kill(process)
        assert not process.alive()
        assert listener_of(path) is None  # the file is there still
        assert await kill(process)
    finally:
        process.send(signal.SIGKILL)
