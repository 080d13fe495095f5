"""The main job through the published Python SDK: run, files, pause, resume, fork, snapshot, expiry."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import CommandExitException, NotFoundException, Sandbox, SandboxException, TimeoutException

from tests.e2e.inside import BOOT_ID, counter_went_on, output, start_counter
from tests.e2e.waiting import until


def test_streams_are_separate_and_the_exit_code_is_right(sandbox: Sandbox) -> None:
    out: list[str] = []
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("printf out; printf err >&2; exit 7", on_stdout=out.append)
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (7, "out", "err")
    assert "".join(out) == "out"


def test_a_timed_out_command_ends_with_its_whole_tree(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("setsid sleep 987 & sleep 986", timeout=1)
    left = until(
        lambda: (
            [p] if not (p := sandbox.commands.run("pgrep -f 'sleep 98[67]' || true").stdout.strip()) else None
        ),
        "both sleeps are gone",
    )
    assert left == [""]


def test_pause_and_resume_keep_memory_processes_and_files(sandbox: Sandbox) -> None:
    before = start_counter(sandbox)
    for round_ in range(3):
        sandbox.files.write(f"/home/user/f{round_}", str(round_))
        sandbox.pause()
        assert Sandbox.connect(sandbox.sandbox_id, timeout=300).sandbox_id == sandbox.sandbox_id
        before = counter_went_on(sandbox, before)
        assert [sandbox.files.read(f"/home/user/f{i}") for i in range(round_ + 1)] == [
            str(i) for i in range(round_ + 1)
        ]


def test_a_second_pause_says_so_and_a_paused_sandbox_is_not_running(sandbox: Sandbox) -> None:
    sandbox.pause()
    assert not sandbox.is_running()
    assert sandbox.pause() is False
    sandbox.connect()
    assert sandbox.is_running()


def test_forked_children_diverge(sandbox: Sandbox) -> None:
    before = start_counter(sandbox)
    forked = sandbox.fork(count=3)
    children = [child for child in forked if isinstance(child, Sandbox)]
    assert len(children) == 3, forked
    try:
        for index, child in enumerate(children):
            child.files.write("/home/user/who", str(index))
            counter_went_on(child, before)
        assert [child.files.read("/home/user/who") for child in children] == ["0", "1", "2"]
        assert not sandbox.files.exists("/home/user/who")
        names = {
            s.commands.run("cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id").stdout
            for s in [sandbox, *children]
        }
        assert len(names) == 4
        randoms = {s.commands.run("head -c 16 /dev/urandom | base64").stdout for s in [sandbox, *children]}
        assert len(randoms) == 4
        ids = {s.commands.run("echo $E2B_SANDBOX_ID").stdout.strip() for s in [sandbox, *children]}
        assert ids == {s.sandbox_id for s in [sandbox, *children]}
    finally:
        for child in children:
            child.kill()


def test_twenty_children_answer_and_diverge(sandbox: Sandbox) -> None:
    """The most that one call may ask for."""
    before = start_counter(sandbox)
    forked = sandbox.fork(count=20)
    children = [child for child in forked if isinstance(child, Sandbox)]

    def use(child: Sandbox) -> tuple[str, str]:
        counter_went_on(child, before)
        child.files.write("/home/user/who", child.sandbox_id)
        return output(child, "cat who"), output(child, BOOT_ID)

    with ThreadPoolExecutor(10) as threads:
        try:
            assert len(children) == 20, forked
            said = list(threads.map(use, children))
        finally:
            list(threads.map(Sandbox.kill, children))
    assert [who for who, _boot in said] == [child.sandbox_id for child in children]
    assert len({boot for _who, boot in said}) == 20
    counter_went_on(sandbox, before)
    assert not sandbox.files.exists("/home/user/who")


def test_a_snapshot_outlives_its_source(make_sandbox: Callable[..., Sandbox]) -> None:
    source = make_sandbox(timeout=300)
    source.files.write("/home/user/state", "then")
    snapshot = source.create_snapshot()
    source.files.write("/home/user/state", "now")
    source.kill()
    restored = make_sandbox(snapshot.snapshot_id, timeout=300)
    assert restored.files.read("/home/user/state") == "then"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert restored.commands.run("cat /home/user/state").stdout == "then"


def test_at_its_timeout_a_sandbox_is_killed(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox(timeout=300)
    sandbox.set_timeout(0)
    until(lambda: not sandbox.is_running() or None, "it is gone")
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_kill_ends_streams_with_a_clear_error(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox(timeout=300)
    command = sandbox.commands.run("sleep 60", background=True)
    started = time.monotonic()
    assert sandbox.kill()
    with pytest.raises(SandboxException):
        command.wait()
    assert time.monotonic() - started < 5


def test_unknown_template_is_not_found() -> None:
    with pytest.raises((NotFoundException, SandboxException)) as failed:
        Sandbox.create("no-such-template")
    assert "no-such-template" in str(failed.value)
