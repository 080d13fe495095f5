"""Failures that users of such systems reported, each tried through the published SDK (table in tests/README.md)."""

import hashlib
import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from e2b import (
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)

from tests.e2e.inside import count_of, counter_went_on, only_child, output, start_counter, until_paused
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import namespace_of_sandbox, on_host, process_of_sandbox, records

Make = Callable[..., Sandbox]


# -- R01: characters at the borders of pieces ------------------------------------------------------------


@pytest.mark.parametrize("character", ["é", "€", "\N{GRINNING FACE}"])
def test_r01_characters_across_borders_stay_whole(sandbox: Sandbox, character: str) -> None:
    """Every alignment of a character with the borders of 8 KiB and 32 KiB, all in one process each."""
    width = len(character.encode())
    for border in (8192, 32768):
        for shift in range(width):
            text = "a" * (border - width + 1 + shift) + character * 20_000
            script = f'print("a" * {len(text) - 20_000} + "{character}" * 20000, end="")'
            pieces: list[str] = []
            result = sandbox.commands.run(f"python3 -X utf8 -c '{script}'", on_stdout=pieces.append)
            assert result.stdout == text
            assert "".join(pieces) == text


def test_r01_slow_halves_are_joined_and_broken_bytes_hold_nothing_back(sandbox: Sandbox) -> None:
    halves = r"printf '\xe2\x82'; sleep 0.3; printf '\xac\n'"
    assert output(sandbox, f'bash -c "{halves}"') == "€"
    shown: list[str] = []
    prompt = r'printf "\xff\xc0> "; read x'
    handle = sandbox.commands.run(prompt, background=True, stdin=True, timeout=60)
    thread = threading.Thread(target=lambda: handle.wait(on_stdout=shown.append))
    thread.start()
    try:
        until(lambda: "> " in "".join(shown) or None, "the prompt is shown while the program waits")
    finally:
        sandbox.commands.send_stdin(handle.pid, "x\n")
        thread.join(30)


# -- R03, R05: deadlines ---------------------------------------------------------------------------------


def test_r03_a_deadline_ends_descendants_and_frees_the_port(sandbox: Sandbox) -> None:
    command = (
        "bash -c 'while :; do date +%s%N >> /tmp/beat; sleep .1; done' & python3 -m http.server 8098 & wait"
    )
    with pytest.raises(TimeoutException):
        sandbox.commands.run(command, timeout=2)
    until(
        lambda: output(sandbox, "pgrep -f '[h]ttp.server 8098' || true") == "" or None, "the server has ended"
    )
    lines = output(sandbox, "wc -l < /tmp/beat")
    assert output(sandbox, "sleep 0.5; wc -l < /tmp/beat") == lines
    assert sandbox.commands.list() == []
    sandbox.commands.run("timeout 1 python3 -m http.server 8098 || test $? = 124")


def test_r05_what_was_printed_before_the_deadline_arrives(sandbox: Sandbox) -> None:
    seen: list[str] = []
    with pytest.raises(TimeoutException):
        sandbox.commands.run("printf partial; sleep 30", timeout=1, on_stdout=seen.append)
    assert "".join(seen) == "partial"


def test_r05_streams_are_whole_and_apart(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("python3 -c 'print(\"x\"*5_000_000)'; echo FATAL >&2; exit 1")
    assert (len(failed.value.stdout), failed.value.stderr, failed.value.exit_code) == (
        5_000_001,
        "FATAL\n",
        1,
    )
    numbers = "".join(f"{n}\n" for n in range(1, 300_001))
    assert sandbox.commands.run("seq 1 300000").stdout == numbers


# -- R08: zombies ----------------------------------------------------------------------------------------


def test_r08_orphans_are_reaped(sandbox: Sandbox) -> None:
    for _ in range(30):
        sandbox.commands.run("for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'sleep 0.05 &'; done")
    zombies = "cat /proc/[0-9]*/status 2>/dev/null | grep -c '^State:.Z' || true"
    until(lambda: output(sandbox, zombies) == "0" or None, "no zombie is left")
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("exit 3")
    assert failed.value.exit_code == 3


# -- R09: terminals --------------------------------------------------------------------------------------


def test_r09_a_terminal_has_its_size_follows_it_and_takes_late_calls(sandbox: Sandbox) -> None:
    handle = sandbox.pty.create(PtySize(rows=31, cols=117), timeout=60)
    seen = bytearray()
    ended: list[int] = []

    def follow() -> None:
        try:
            ended.append(handle.wait(on_pty=seen.extend).exit_code)
        except CommandExitException as error:
            ended.append(error.exit_code)

    thread = threading.Thread(target=follow)
    thread.start()

    def expect(text: bytes) -> None:
        until(lambda: text in seen or None, f"{text!r} is shown")

    def say(line: str) -> None:
        sandbox.pty.send_stdin(handle.pid, line.encode())

    say("stty size\n")
    expect(b"31 117\r\n")
    say("trap 'stty size' WINCH; echo re''ady; while :; do sleep .1; done\n")
    expect(b"ready\r\n")
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=132))
    expect(b"40 132\r\n")
    say("\x03")
    say("echo ali''ve\n")
    expect(b"alive\r\n")
    child = (
        "import signal,time; signal.signal(signal.SIGWINCH, lambda *_: print('child', flush=True));"
        "print('wait''ing', flush=True); time.sleep(60)"
    )
    say(f'python3 -c "{child}"\n')
    expect(b"waiting\r\n")
    sandbox.pty.resize(handle.pid, PtySize(rows=24, cols=80))
    expect(b"child\r\n")
    say("\x03")
    say("exit 5\n")
    thread.join(30)
    assert ended == [5]
    for late in (lambda: sandbox.pty.resize(handle.pid, PtySize(rows=10, cols=10)), lambda: say("x")):
        with pytest.raises(NotFoundException):
            late()
    assert sandbox.commands.run("echo well").stdout == "well\n"


# -- R12: sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [0, 1, 18 * 1024 - 1, 18 * 1024, 18 * 1024 + 1, 65_535, 65_537, (16 << 20) + 3]
)
def test_r12_uploads_of_every_size_are_there(sandbox: Sandbox, size: int) -> None:
    data = hashlib.shake_128(str(size).encode()).digest(size)
    want = hashlib.sha256(data).hexdigest()
    for form in (True, False):
        sandbox.files.write("/home/user/f", data, use_octet_stream=form)
        assert output(sandbox, "sha256sum /home/user/f").split()[0] == want
        assert bytes(sandbox.files.read("/home/user/f", format="bytes")) == data


def test_r12_what_fails_never_says_ok(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException):
        sandbox.files.write("/etc/passwd", "x", user="user")
    assert "root:" in sandbox.files.read("/etc/passwd")
    sandbox.commands.run("mkdir -p /mnt/small && mount -t tmpfs -o size=4m none /mnt/small", user="root")
    with pytest.raises(SandboxException):
        sandbox.files.write("/mnt/small/f", b"x" * (8 << 20), user="root")
    assert not sandbox.files.exists("/mnt/small/f", user="root")


# -- R14: watches ----------------------------------------------------------------------------------------


def test_r14_a_recursive_watch_sees_new_directories_and_what_is_in_them(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/home/user/w")
    watch = sandbox.files.watch_dir("/home/user/w", recursive=True)
    seen: set[str] = set()

    def saw(*names: str) -> bool | None:
        events = watch.get_new_events()
        seen.update(event.name for event in events if event.type is not FilesystemEventType.REMOVE)
        return set(names) <= seen or None

    sandbox.commands.run("cd w && mkdir -p a/b/c && echo 1 > a/b/c/f")
    until(lambda: saw("a", "a/b", "a/b/c", "a/b/c/f"), f"all of a/b/c/f is announced, not only {seen}")
    sandbox.commands.run("cd w && mv a z && echo 2 > z/b/c/g")
    until(lambda: saw("z/b/c/g"), "the renamed directory is watched under its new name")
    sandbox.commands.run("cd w && echo new > t.tmp && mv t.tmp t")
    until(lambda: saw("t"), "a rename names the target")
    sandbox.files.write("/home/user/w/api.txt", "x")
    until(lambda: saw("api.txt"), "writes through the API are seen")
    sandbox.commands.run("cd w && for i in $(seq 1 2000); do : > n$i; done")
    until(lambda: saw(*(f"n{i}" for i in range(1, 2001))), "no event of a burst is lost")
    watch.stop()


def test_r14_a_watch_lives_through_a_pause_or_says_that_it_ended(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("/home/user/w")
    watch = sandbox.files.watch_dir("/home/user/w")
    sandbox.pause()
    sandbox.connect(timeout=300)
    sandbox.commands.run("touch w/after")

    def answer() -> str | None:
        try:
            return "seen" if any(event.name == "after" for event in watch.get_new_events()) else None
        except SandboxException:
            return "ended"

    until(answer, "the event comes, or an error")


# -- R15: owners -----------------------------------------------------------------------------------------


def test_r15_owners_and_modes_hold_through_every_step(sandbox: Sandbox, make_sandbox: Make) -> None:
    sandbox.files.write("/home/user/new/deep/dir/f", "x")
    sandbox.files.write("/home/user/roots", "x", user="root")
    sandbox.commands.run(
        "chmod 600 roots; install -m 4755 /bin/true /usr/local/bin/suid", user="root", cwd="/home/user"
    )
    sandbox.files.write("/home/user/repo/README", "hello")
    sandbox.commands.run("command -v git >/dev/null || exit 0; cd repo && git init -q && git status --short")
    look = "stat -c '%n %U:%G %a' new new/deep new/deep/dir new/deep/dir/f roots /usr/local/bin/suid"
    before = output(sandbox, look)
    assert "new/deep user:user" in before
    assert "new/deep/dir/f user:user 644" in before
    assert "roots root:root 600" in before
    assert "suid root:root 4755" in before
    with pytest.raises(CommandExitException):
        sandbox.commands.run("echo x >> roots")
    sandbox.commands.run("echo x >> new/deep/dir/f")
    snapshot = sandbox.create_snapshot()
    child = only_child(sandbox)
    try:
        sandbox.pause()
        sandbox.connect(timeout=300)
        for later in (sandbox, child, make_sandbox(snapshot.snapshot_id, timeout=120)):
            assert output(later, look) == before
            later.commands.run("echo x >> new/deep/dir/f")
    finally:
        child.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)


# -- R16: many pauses ------------------------------------------------------------------------------------


def hashes_of(sandbox: Sandbox, names: str) -> dict[str, str]:
    lines = output(sandbox, f"sha256sum {names} 2>/dev/null || true").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_r16_six_rounds_of_pause_keep_every_change(make_sandbox: Make, server: ServerProcess) -> None:
    sandbox = make_sandbox(timeout=300, lifecycle={"on_timeout": "pause"})
    count = start_counter(sandbox)
    for k in range(1, 7):
        sandbox.files.write(f"/home/user/f{k}", f"content {k}")
        script = [f"echo {k} >> log", f"printf {k} > same", f"rm -rf f{k - 2}", f"mkdir d{k} && touch d{k}/x"]
        script += [f"mv d{k} e{k}", f"ln -sf f{k} link", f"chmod 60{k} f{k}"]
        if k % 2 == 0:
            script.append(f"head -c 20000000 /dev/urandom > big{k}")
        sandbox.commands.run(" && ".join(script))
        hashes = hashes_of(sandbox, "log same f* big*")
        if k == 5:
            sandbox.set_timeout(0)
            until_paused(sandbox)
        else:
            assert sandbox.pause()
        if k == 3:
            server.kill()
            server.start()
        assert Sandbox.connect(sandbox.sandbox_id, timeout=300).sandbox_id == sandbox.sandbox_id
        count = counter_went_on(sandbox, count)
        assert hashes_of(sandbox, "log same f* big*") == hashes
        listing = set(output(sandbox, "ls").split())
        assert {f"f{i}" for i in range(1, 7)} & listing == {f"f{i}" for i in range(max(1, k - 1), k + 1)}
        assert {f"e{i}" for i in range(1, k + 1)} <= listing
        assert not any(name.startswith("d") for name in listing)
        assert output(sandbox, "readlink link") == f"f{k}"
        assert output(sandbox, f"stat -c %a f{k}") == f"60{k}"


# -- R19: identity of forks ------------------------------------------------------------------------------


def test_r19_children_share_no_secret_and_no_token(sandbox: Sandbox) -> None:
    waiting = (
        "import secrets, uuid, os; open('/tmp/go').read();"
        "print(secrets.token_hex(16), uuid.uuid4(), os.urandom(8).hex(), flush=True)"
    )
    sandbox.files.write("/home/user/w.py", waiting)
    sandbox.commands.run("mkfifo /tmp/go; (python3 w.py > /tmp/said 2>&1 &) ; sleep 0.3")
    forked = sandbox.fork(count=3)
    children = [child for child in forked if isinstance(child, Sandbox)]
    assert len(children) == 3, forked
    assert len(children) == 3
    family = [sandbox, *children]
    try:
        look = (
            "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id /etc/hostname;"
            "head -c 8 /dev/urandom | od -An -tx1; echo $E2B_SANDBOX_ID"
        )
        answers = [output(member, look).split("\n") for member in family]
        for column in zip(*answers, strict=True):
            assert len(set(column)) == len(family), column
        for member in family:
            member.commands.run(
                "echo > /tmp/go; for i in $(seq 100); do test -s /tmp/said && break; sleep 0.05; done"
            )
        said = [output(member, "cat /tmp/said").split() for member in family]
        for column in zip(*said, strict=True):
            assert len(set(column)) == len(family), column
        tokens = {member._envd_access_token for member in family}
        assert len(tokens) == len(family)
    finally:
        for child in children:
            child.kill()


# -- R20: captures while everything is in use ------------------------------------------------------------


def test_r20_a_pause_with_everything_open_is_resumable(sandbox: Sandbox, server: ServerProcess) -> None:
    sandbox.commands.run("head -c 300000000 /dev/zero > /tmp/large")
    ticking = sandbox.commands.run("while :; do date +%s%N; sleep .1; done", background=True, timeout=0)
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    sandbox.files.watch_dir("/home/user")
    download = urllib.request.urlopen(sandbox.download_url("/tmp/large"), timeout=60)
    assert len(download.read(1 << 20)) == 1 << 20
    snapshot = sandbox.create_snapshot()
    child = only_child(sandbox)
    sandbox.pause()
    with pytest.raises(SandboxException):
        ticking.wait()
    with pytest.raises((OSError, HTTPException)):
        download.read()
    download.close()
    sandbox.connect(timeout=300)
    restored = Sandbox.create(snapshot.snapshot_id, timeout=120)
    try:
        for member in (sandbox, child, restored):
            assert {ticking.pid, terminal.pid} <= {process.pid for process in member.commands.list()}
            lines: list[str] = []
            again = member.commands.connect(ticking.pid, timeout=60)
            for stdout, _, _ in again:
                lines.append(stdout or "")
                break
            again.disconnect()
            assert lines
            seen = bytearray()
            shell = member.pty.connect(terminal.pid, timeout=60)
            member.pty.send_stdin(terminal.pid, b"echo al''ive $$\n")
            for _, _, data in shell:
                seen.extend(data or b"")
                if b"alive " in seen:
                    break
            shell.disconnect()
            assert b"alive " in seen
            assert output(member, "echo ok") == "ok"
    finally:
        child.kill()
        restored.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)


# -- R22: how long a sandbox lives -----------------------------------------------------------------------


def left(sandbox: Sandbox) -> float:
    return (sandbox.get_info().end_at - datetime.now(UTC)).total_seconds()


def test_r22_connecting_never_shortens_a_life(make_sandbox: Make) -> None:
    sandbox = make_sandbox(timeout=1800)
    end = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id)
    Sandbox.connect(sandbox.sandbox_id, timeout=60)
    sandbox.commands.run("true")
    assert sandbox.get_info().end_at >= end
    Sandbox.connect(sandbox.sandbox_id, timeout=3600)
    assert 3500 < left(sandbox) <= 3600
    sandbox.set_timeout(300)
    assert 200 < left(sandbox) <= 300
    sandbox.pause()
    Sandbox.connect(sandbox.sandbox_id, timeout=120)
    assert 60 < left(sandbox) <= 120


@pytest.mark.parametrize("timeout", [-1, 10**12, "abc", None, 1.5])
def test_r22_nonsense_is_refused_and_changes_nothing(
    sandbox: Sandbox, server: ServerProcess, timeout: Any
) -> None:
    end = sandbox.get_info().end_at
    request = urllib.request.Request(
        f"{server.url}/sandboxes/{sandbox.sandbox_id}/connect",
        data=json.dumps({} if timeout is None else {"timeout": timeout}).encode(),
        headers={"X-API-Key": server.api_key, "Content-Type": "application/json"},
        method="POST",
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 400
    assert "timeout" in json.loads(refused.value.read())["message"]
    refused.value.close()
    assert sandbox.get_info().end_at == end


def test_r22_at_the_deadline_there_is_one_outcome(make_sandbox: Make) -> None:
    sandbox = make_sandbox(timeout=300)
    sandbox.set_timeout(2)
    extended: list[bool] = []

    def extend() -> None:
        try:
            sandbox.set_timeout(60)
            extended.append(True)
        except SandboxException:
            extended.append(False)

    until(lambda: left(sandbox) < 0.1 or None, "the deadline is near")
    threads = [threading.Thread(target=extend) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(extended) == 10
    if any(extended):
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
        assert left(sandbox) > 30
    else:
        assert not sandbox.is_running()


# -- R24: after a crash of the server --------------------------------------------------------------------


def test_r24_after_a_crash_states_are_true_and_nothing_needs_a_reset(
    make_sandbox: Make, server: ServerProcess
) -> None:
    running, paused, short, dead = (make_sandbox(timeout=300) for _ in range(4))
    running.commands.run("python3 -m http.server 8077 >/dev/null 2>&1 & sleep 0.2; true")
    counter = start_counter(running)
    paused.pause()
    short.set_timeout(2)
    dead.commands.run("true")
    server.kill()
    # The data plane does not need the server.
    assert count_of(running) is not None
    server.start()
    states = {item.sandbox_id: item.state.value for item in Sandbox.list().next_items()}
    assert states[running.sandbox_id] == "running"
    assert states[paused.sandbox_id] == "paused"
    until(lambda: not short.is_running() or None, "its time ended while the server was away")
    fetch = "import urllib.request as u; print(u.urlopen('http://localhost:8077').status)"
    assert output(running, f'python3 -c "{fetch}"') == "200"
    assert count_of(running)[0] == counter[0]  # type: ignore[index]
    paused.connect(timeout=120)
    assert output(paused, "echo back") == "back"
    assert dead.kill()
    assert not dead.is_running()
    assert output(make_sandbox(timeout=60), "echo new") == "new"


def _slots_are_in_use(data_dir: Path) -> bool:
    lines = on_host(data_dir)
    groups = [line.split("/") for line in lines if line.startswith("control group ")]
    machines = {names[-1] for names in groups if names[-2].startswith("forkyard-")}
    return sum(line.startswith("namespace ") for line in lines) == len(machines)


def test_r24_what_dies_while_the_server_is_down_is_gone_with_its_reason(
    make_sandbox: Make, server: ServerProcess
) -> None:
    """By its process that is killed, or its network that is removed, from outside."""
    killed, unplugged, neighbour = (make_sandbox(timeout=300) for _ in range(3))
    counter = start_counter(neighbour)
    process = process_of_sandbox(server.data_dir, killed.sandbox_id)
    namespace = namespace_of_sandbox(server.data_dir, unplugged.sandbox_id)
    server.kill()
    os.kill(process, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], check=True)
    assert output(neighbour, "echo on") == "on"
    server.start()
    for sandbox, reason in ((killed, "died while the server was down"), (unplugged, "its network was lost")):
        with pytest.raises(NotFoundException):
            Sandbox.connect(sandbox.sandbox_id)
        assert not sandbox.is_running()
        row = next(row for row in records(server.data_dir).sandboxes if row.id == sandbox.sandbox_id)
        assert row.state.value == "gone"
        assert reason in (row.end_reason or "")
    counter = counter_went_on(neighbour, counter)
    neighbour.pause()
    neighbour.connect(timeout=300)
    counter_went_on(neighbour, counter)
    # What they had on the host is free again, or used by a machine of a pool: there is none without a machine.
    until(lambda: _slots_are_in_use(server.data_dir) or None, "the slots are given back")
    assert output(make_sandbox(timeout=60), "echo new") == "new"


# -- R34: devices and limits -----------------------------------------------------------------------------


def test_r34_shared_memory_semaphores_and_devices(sandbox: Sandbox) -> None:
    for user in ("user", "root"):
        assert output(sandbox, "stat -c %a /dev/shm", user=user) == "1777"
        free, size = map(int, output(sandbox, "stat -fc '%a %b' /dev/shm", user=user).split())
        assert 0 < free <= size
        queue = (
            "import multiprocessing as m; l=m.Lock(); q=m.Queue(); p=m.Process(target=q.put,args=(1,));"
            "p.start(); print(q.get()); p.join()"
        )
        assert output(sandbox, f"python3 -c '{queue}'", user=user) == "1"
        large = (
            "from multiprocessing import shared_memory as s; a=s.SharedMemory(create=True,size=200<<20);"
            "a.buf[-1]=7; print(a.buf[-1]); a.close(); a.unlink()"
        )
        assert output(sandbox, f"python3 -c '{large}'", user=user) == "7"
    names = "null zero full random urandom tty ptmx fd stdin stdout stderr"
    assert output(sandbox, f"cd /dev; for d in {names}; do test -e $d || echo missing $d; done") == ""
    assert output(sandbox, "echo x > /dev/stdout; bash -c 'cat <(echo hi)'") == "x\nhi"
    assert int(output(sandbox, "ls /proc/self/fd | wc -l")) >= 3
    assert output(sandbox, "rm -f p; mkfifo p && (echo through > p &) && cat p") == "through"
    assert int(output(sandbox, "ulimit -n")) >= 1024


def test_r34_the_machine_shows_its_own_size(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert int(output(sandbox, "nproc")) == info.cpu_count
    total_kb = int(output(sandbox, "awk '/MemTotal/ {print $2}' /proc/meminfo"))
    assert abs(total_kb / 1024 - info.memory_mb) < info.memory_mb * 0.1


def test_r34_locks_and_renames_of_the_templates_directories(sandbox: Sandbox) -> None:
    wal = (
        "import sqlite3; c=sqlite3.connect('/home/user/db');"
        "print(c.execute('pragma journal_mode=wal').fetchone()[0]); c.execute('create table t(x)'); c.commit()"
    )
    assert output(sandbox, f'python3 -c "{wal}"') == "wal"
    rename = "import os; os.rename('/etc/alternatives', '/etc/a2'); print(len(os.listdir('/etc/a2')) > 0)"
    assert output(sandbox, f'python3 -c "{rename}"', user="root") == "True"


def test_r34_segments_survive_a_pause_and_are_copied_by_a_fork(sandbox: Sandbox) -> None:
    sandbox.commands.run("echo before > /dev/shm/segment")
    sandbox.pause()
    sandbox.connect(timeout=300)
    assert output(sandbox, "cat /dev/shm/segment") == "before"
    child = only_child(sandbox)
    try:
        child.commands.run("echo child > /dev/shm/segment")
        assert output(sandbox, "cat /dev/shm/segment") == "before"
        assert output(child, "cat /dev/shm/segment") == "child"
    finally:
        child.kill()
