"""Pauses, resumes and snapshots without memory: files stay, processes do not, others can be started."""

from collections.abc import Callable

from e2b import Sandbox

from tests.e2e.inside import BOOT_ID, count_of, counter_went_on, only_child, output, start_counter

FILES = "cat /home/user/file; stat -c '%U %a' /home/user/file; cat /etc/roots"


def fill(sandbox: Sandbox) -> str:
    """Files of the user and of root, and a counter that runs; what `FILES` prints."""
    sandbox.commands.run("echo kept > file; chmod 640 file")
    sandbox.commands.run("echo roots > /etc/roots", user="root")
    start_counter(sandbox)
    return output(sandbox, FILES)


def counters(sandbox: Sandbox) -> str:
    return output(sandbox, "pgrep -f '[c]ounter.py' || true")


def check_rebooted(sandbox: Sandbox, files: str, boot_id: str) -> None:
    """The files are there, no process is, the boot is another one, and commands, input and terminals work."""
    assert output(sandbox, FILES) == files
    assert counters(sandbox) == ""
    assert sandbox.commands.list() == []
    assert output(sandbox, BOOT_ID) != boot_id
    assert output(sandbox, "echo $E2B_SANDBOX_ID") == sandbox.sandbox_id
    typing = sandbox.commands.run("cat", background=True, stdin=True, timeout=30)
    sandbox.commands.send_stdin(typing.pid, "typed\n")
    sandbox.commands.close_stdin(typing.pid)
    assert typing.wait().stdout == "typed\n"


def test_a_pause_without_memory_keeps_files_and_ends_processes(sandbox: Sandbox) -> None:
    files = fill(sandbox)
    for options in ({"keep_memory": False}, {"mode": "filesystem"}):
        boot_id = output(sandbox, BOOT_ID)
        assert sandbox.pause(**options)
        Sandbox.connect(sandbox.sandbox_id, timeout=300)
        check_rebooted(sandbox, files, boot_id)
        before = start_counter(sandbox)
    # And what was started after that is paused and forked with its memory as ever.
    sandbox.pause()
    sandbox.connect(timeout=300)
    before = counter_went_on(sandbox, before)
    child = only_child(sandbox)
    try:
        counter_went_on(child, before)
        assert output(child, FILES) == files
    finally:
        child.kill()


def test_a_reboot_of_a_sandbox_that_was_paused_with_memory(sandbox: Sandbox) -> None:
    files = fill(sandbox)
    boot_id = output(sandbox, BOOT_ID)
    assert sandbox.pause()
    Sandbox.connect(sandbox.sandbox_id, timeout=300, on_resume="reboot")
    check_rebooted(sandbox, files, boot_id)
    assert count_of(sandbox) is not None  # the file, which nobody writes any more


def test_a_snapshot_without_memory_starts_afresh_and_leaves_its_source_alone(
    sandbox: Sandbox, make_sandbox: Callable[..., Sandbox]
) -> None:
    files = fill(sandbox)
    before = count_of(sandbox)
    assert before is not None
    boot_id = output(sandbox, BOOT_ID)
    snapshot = sandbox.create_snapshot(mode="filesystem")
    try:
        counter_went_on(sandbox, before)
        assert output(sandbox, BOOT_ID) == boot_id
        restored = [make_sandbox(snapshot.snapshot_id, timeout=300) for _ in range(2)]
        for one in restored:
            check_rebooted(one, files, boot_id)
        assert len({output(one, BOOT_ID) for one in restored}) == 2
        # Pause and fork it like any other.
        first = restored[0]
        before = start_counter(first)
        first.pause(keep_memory=False)
        first.connect(timeout=300)
        assert counters(first) == ""
        before = start_counter(first)
        child = only_child(first)
        try:
            counter_went_on(child, before)
            assert output(child, FILES) == files
        finally:
            child.kill()
    finally:
        Sandbox.delete_snapshot(snapshot.snapshot_id)
