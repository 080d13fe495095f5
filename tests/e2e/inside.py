"""What the tests ask of a sandbox, and the counter by which they see that its memory and processes are the same."""

from typing import Any

from e2b import Sandbox

from tests.e2e.waiting import until

COUNTER = """
import os, time
n = 0
while True:
    n += 1
    open("/tmp/count", "w").write(f"{os.getpid()} {n}")
    time.sleep(0.02)
"""

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def output(sandbox: Sandbox, command: str, **options: Any) -> str:
    """What a command prints, stripped. Raises CommandExitException when it fails."""
    return sandbox.commands.run(command, **options).stdout.strip()


def count_of(sandbox: Sandbox) -> tuple[int, int] | None:
    """(pid, count) of the counter, once it has written both."""
    if not sandbox.files.exists("/tmp/count"):
        return None
    words = sandbox.files.read("/tmp/count").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def start_counter(sandbox: Sandbox) -> tuple[int, int]:
    """Start it, the only one; what `count_of` says first."""
    sandbox.files.write("/home/user/counter.py", COUNTER)
    sandbox.commands.run("rm -f /tmp/count")
    sandbox.commands.run("python3 /home/user/counter.py", background=True, timeout=0)
    return until(lambda: count_of(sandbox), "the counter counts")


def counter_went_on(sandbox: Sandbox, before: tuple[int, int]) -> tuple[int, int]:
    """Wait until the counter has counted past `before`, and check that it is the same process."""
    now = until(lambda: c if (c := count_of(sandbox)) and c[1] > before[1] else None, "the counter went on")
    assert now[0] == before[0]
    return now


def state_of(sandbox: Sandbox) -> str:
    """What the server says: running or paused. Raises NotFoundException."""
    return sandbox.get_info().state.value


def until_paused(sandbox: Sandbox) -> None:
    """Wait for the pause at its deadline."""
    until(lambda: state_of(sandbox) == "paused" or None, "it is paused at its deadline")


def only_child(sandbox: Sandbox, **options: Any) -> Sandbox:
    """Fork it into one. Fails with what the server said about the child."""
    (child,) = sandbox.fork(count=1, **options)
    assert isinstance(child, Sandbox), child
    return child
