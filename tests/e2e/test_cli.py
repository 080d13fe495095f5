"""The command line as people and scripts use it: a process of its own, pipes, signals, and a real terminal."""

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from tests.e2e.server import ServerProcess, free_port
from tests.e2e.waiting import until

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.argv[0] = '{name}'; from forkyard.cli.main import main; main()"


def command(*words: str, name: str = "forkyard") -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(name=name), *words]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def cli(
    *words: str, stdin: bytes | None = b"", name: str = "forkyard", timeout: float = 60
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*words, name=name), input=stdin, capture_output=True, timeout=timeout, check=False
    )


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, words: list[str], rows: int, cols: int) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
            os.execv(words[0], words)
        self.seen = b""

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, text: bytes, timeout_s: float = 30) -> None:
        """Until `text` was printed after what was expected before."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"{text!r} did not come: {self.seen!r}")
            with contextlib.suppress(OSError):
                self.seen += os.read(self.master, 65536)
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def insist(self, data: bytes, text: bytes) -> None:
        """Type `data` until `text` comes: a signal to a job that has just ended, as any terminal's, reaches nobody."""
        for _ in range(10):
            self.type(data)
            with contextlib.suppress(AssertionError):
                return self.expect(text, timeout_s=3)
        raise AssertionError(f"{text!r} did not come: {self.seen!r}")

    def wait(self) -> int:
        """Its exit code, reading what it still says."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if self.master >= 0 and select.select([self.master], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    os.read(self.master, 65536)
        raise AssertionError("it did not end")

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def end(self) -> None:
        self.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(sandbox: Sandbox) -> Generator[Terminal]:
    """`forkyard connect` on a terminal of 31 rows and 117 columns, its shell ready."""
    attached = Terminal(command("connect", sandbox.sandbox_id), 31, 117)
    try:
        attached.type(b"echo re''ady\n")
        attached.expect(b"ready\r\n")
        yield attached
    finally:
        attached.end()


def test_exec_keeps_streams_apart_and_gives_the_exit_code(sandbox: Sandbox) -> None:
    done = cli("exec", sandbox.sandbox_id, "--", "sh", "-c", "printf out; printf err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out", b"err")
    assert cli("exec", sandbox.sandbox_id, "sh", "-c", "kill -KILL $$").returncode == 137
    done = cli(
        "exec",
        "-u",
        "root",
        "-w",
        "/etc",
        "-e",
        "A=1 2",
        sandbox.sandbox_id,
        "sh",
        "-c",
        "id -un; pwd; echo $A",
    )
    assert done.stdout == b"root\n/etc\n1 2\n"
    done = cli("exec", sandbox.sandbox_id, "no-such-program")
    assert (done.returncode, b"no-such-program" in done.stderr) == (125, True)


def test_exec_passes_bytes_through_and_the_end_of_input(sandbox: Sandbox) -> None:
    data = os.urandom(1 << 20) + b"\xff\xc0\x00\r\n"
    assert cli("exec", sandbox.sandbox_id, "cat", stdin=data).stdout == data
    assert cli("exec", sandbox.sandbox_id, "head", "-c", "3", stdin=data).stdout == data[:3]
    with open("/dev/null", "rb") as empty:
        done = subprocess.run(
            command("exec", sandbox.sandbox_id, "wc", "-c"),
            stdin=empty,
            capture_output=True,
            timeout=60,
            check=True,
        )
    assert done.stdout.strip() == b"0"


def test_exec_with_closed_input(sandbox: Sandbox) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command("exec", sandbox.sandbox_id, "wc", "-c")]
    done = subprocess.run(shell, capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"0"


def test_large_output_is_whole_and_is_not_mixed(sandbox: Sandbox) -> None:
    script = 'import sys; print("x"*5_000_000); print("FATAL", file=sys.stderr); sys.exit(1)'
    done = cli("exec", sandbox.sandbox_id, "python3", "-c", script)
    assert (done.returncode, len(done.stdout), done.stderr) == (1, 5_000_001, b"FATAL\n")


def test_a_reader_that_goes_away_ends_the_command(sandbox: Sandbox) -> None:
    running = subprocess.Popen(
        command("exec", sandbox.sandbox_id, "yes"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.read(2) == b"y\n"
    running.stdout.close()
    assert running.wait(30) == 141
    until(lambda: not commands_of(sandbox, "yes") or None, "yes has ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_command_and_not_only_us(sandbox: Sandbox, number: signal.Signals) -> None:
    running = subprocess.Popen(command("exec", sandbox.sandbox_id, "sleep", "321"), stdin=subprocess.DEVNULL)
    until(lambda: commands_of(sandbox, "sleep") or None, "sleep runs")
    running.send_signal(number)
    assert running.wait(30) == 143
    assert not commands_of(sandbox, "sleep")


def commands_of(sandbox: Sandbox, name: str) -> list[int]:
    return [process.pid for process in sandbox.commands.list() if process.cmd.rsplit("/", 1)[-1] == name]


def test_the_terminal_has_our_size_and_follows_it(terminal: Terminal) -> None:
    terminal.type(b"stty size\n")
    terminal.expect(b"31 117\r\n")
    terminal.type(b"trap 'stty size' WINCH; echo tra''pped; while :; do sleep .1; done\n")
    terminal.expect(b"trapped\r\n")
    terminal.resize(40, 132)
    terminal.expect(b"40 132\r\n")
    terminal.insist(b"\x03echo ali''ve\n", b"alive\r\n")
    terminal.type(b"exit 5\n")
    terminal.resize(10, 10)
    assert terminal.wait() == 5


def test_a_closed_terminal_ends_its_shell_and_not_the_sandbox(terminal: Terminal, sandbox: Sandbox) -> None:
    assert commands_of(sandbox, "bash")
    terminal.close()
    until(lambda: not commands_of(sandbox, "bash") or None, "the shell has ended")
    terminal.wait()
    assert sandbox.is_running()


def test_a_pause_gives_the_terminal_back_with_a_sentence(terminal: Terminal, sandbox: Sandbox) -> None:
    sandbox.pause()
    terminal.expect(b"forkyard: ")
    assert terminal.wait() == 1
    assert not sandbox.is_running()


def test_a_shell_without_a_terminal_reads_its_input(sandbox: Sandbox) -> None:
    done = cli("connect", sandbox.sandbox_id, stdin=b"echo out; echo err >&2; exit 3\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_looking_never_moves_the_end(sandbox: Sandbox, tmp_path: Path) -> None:
    end = sandbox.get_info().end_at
    box = sandbox.sandbox_id
    for words in (
        ("exec", box, "true"),
        ("connect", box),
        ("logs", box),
        ("metrics", box),
        ("upload", box, "-", "/tmp/f"),
        ("download", box, "/tmp/f", "-"),
        ("list",),
    ):
        assert cli(*words).returncode == 0, words
        assert sandbox.get_info().end_at == end, words
    assert cli("timeout", box, "60").returncode == 0
    assert sandbox.get_info().end_at < end


@pytest.mark.parametrize("size", [0, 1, 18 * 1024 + 1, 65_537, 64 << 20])
def test_files_of_every_size_go_both_ways(sandbox: Sandbox, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(size))
    want = hashlib.sha256(source.read_bytes()).hexdigest()
    assert cli("upload", sandbox.sandbox_id, str(source), "dir/").returncode == 0
    assert sandbox.commands.run("sha256sum < dir/source").stdout.split()[0] == want
    assert cli("download", sandbox.sandbox_id, "dir/source", str(target)).returncode == 0
    assert hashlib.sha256(target.read_bytes()).hexdigest() == want
    assert cli("upload", sandbox.sandbox_id, "-", "piped", stdin=source.read_bytes()).returncode == 0
    assert hashlib.sha256(cli("download", sandbox.sandbox_id, "piped", "-").stdout).hexdigest() == want


def test_uploads_that_fail_say_so(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * (4 << 20))
    done = cli("upload", sandbox.sandbox_id, str(source), "/etc/forbidden")
    assert (done.returncode, b"permission denied" in done.stderr) == (4, True)
    assert cli("upload", "--user", "root", sandbox.sandbox_id, str(source), "/etc/allowed").returncode == 0
    done = cli("download", sandbox.sandbox_id, "/etc/none", str(tmp_path / "none"))
    assert (done.returncode, (tmp_path / "none").exists()) == (3, False)


def test_pause_fork_snapshot_and_delete(server: ServerProcess) -> None:
    made = json.loads(cli("start", "--detach", "--timeout", "600", name="aenv").stdout)["sandboxID"]
    others: list[str] = []
    try:
        details: Any = next(item for item in json.loads(cli("ls").stdout) if item["sandboxID"] == made)
        assert details["state"] == "running"
        assert Sandbox.get_info(made).lifecycle["on_timeout"] == "pause"
        assert cli("pause", made).returncode == 0
        assert cli("pause", made).returncode == 5
        assert cli("resume", made, "--timeout", "600").returncode == 0
        others = [child["sandboxID"] for child in json.loads(cli("fork", made, "--count", "2").stdout)]
        assert len(others) == 2
        left = (Sandbox.get_info(others[0]).end_at - Sandbox.get_info(made).end_at).total_seconds()
        assert abs(left) < 30
        snapshot = json.loads(cli("snap", "create", made).stdout)["snapshotID"]
        assert snapshot in [item["snapshotID"] for item in json.loads(cli("snapshot", "list").stdout)]
        assert cli("snapshot", "delete", snapshot).returncode == 0
        assert cli("snapshot", "delete", snapshot).returncode == 3
    finally:
        assert cli("rm", made, *others).returncode == 0
    assert cli("exec", made, "true").returncode == 125
    assert cli("pause", made).returncode == 3


def test_completion_knows_the_sandboxes(sandbox: Sandbox) -> None:
    environment = {
        **os.environ,
        "_FORKYARD_COMPLETE": "complete_bash",
        "COMP_WORDS": "forkyard exec i",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(command(), env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert sandbox.sandbox_id in done.stdout.split()


def test_completion_can_be_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        command("--install-completion", "bash"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".bash_completions" / "forkyard.sh").exists()


def test_a_second_server_is_told_what_is_taken(server: ServerProcess, tmp_path: Path) -> None:
    done = cli("serve", "--data-dir", str(server.data_dir))
    assert (done.returncode, b"another server" in done.stderr) == (2, True)
    done = cli("down", "--data-dir", str(server.data_dir))
    assert (done.returncode, b"another server" in done.stderr) == (2, True)
    done = cli("serve", "--data-dir", str(tmp_path / "d"), "--port", str(server.port))
    assert (done.returncode, f"port {server.port}".encode() in done.stderr) == (2, True)
    assert b"Traceback" not in done.stderr


def test_missing_programs_are_named(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_BIN_DIR", str(tmp_path / "empty"))
    done = cli("serve", "--data-dir", str(tmp_path / "d"), "--port", str(free_port()))
    assert done.returncode == 2
    assert b"keeper" in done.stderr
    assert b"Traceback" not in done.stderr


def test_no_server_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:1")
    done = cli("list")
    assert (done.returncode, done.stderr) == (
        7,
        b"forkyard: no server answers at http://127.0.0.1:1 (Connection refused)\n",
    )
    monkeypatch.setenv("E2B_API_URL", "nonsense")
    assert cli("list").returncode == 7
