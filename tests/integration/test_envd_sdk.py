"""The published Python SDK straight at envd, run as an ordinary process: no sandbox, edge or control plane."""

import asyncio
import json
import os
import select
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    TimeoutException,
)
from e2b.connection_config import ConnectionConfig
from e2b.exceptions import AuthenticationException, FileNotFoundException, SandboxException
from packaging.version import Version

ENVD = Path(__file__).resolve().parents[2] / "build/bin/envd"
TOKEN = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

pytestmark = [
    pytest.mark.skipif(not ENVD.exists(), reason="needs build/bin/envd: run scripts/build-go.sh"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: envd runs commands as any user"),
]


@dataclass(frozen=True)
class Envd:
    url: str
    root: Path  # stands for / where envd changes the system's own files

    def init(self, **settings: Any) -> None:
        body = {"accessToken": TOKEN, "defaultUser": "root", **settings}
        request = urllib.request.Request(f"{self.url}/init", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["X-Envd-Version"] == "0.6.13"

    def options(self) -> dict[str, Any]:
        """What `Sandbox.create` would have learnt from a control plane."""
        return {
            "sandbox_id": "ienvd",
            "sandbox_domain": None,
            "envd_version": Version("0.6.13"),
            "envd_access_token": TOKEN,
            "traffic_access_token": None,
            "connection_config": ConnectionConfig(
                api_key="e2b_" + "0" * 40,
                sandbox_url=self.url,
                extra_sandbox_headers={"X-Access-Token": TOKEN},
            ),
        }


@pytest.fixture(scope="module")
def envd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envd]:
    root = tmp_path_factory.mktemp("envd")
    arguments = [
        "--port",
        "0",
        "--state-dir",
        root / "state",
        "--root",
        root,
        "--allow-internal-from",
        "127.0.0.1",
    ]
    with subprocess.Popen([ENVD, *arguments], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], 30)[0], "envd did not start"
            running = Envd(f"http://127.0.0.1:{json.loads(process.stderr.readline())['port']}", root)
            running.init()
            yield running
            end = urllib.request.Request(f"{running.url}/internal/end-processes", b"{}", method="POST")
            urllib.request.urlopen(end).close()
        finally:
            process.kill()


@pytest.fixture
def sandbox(envd: Envd) -> Sandbox:
    return Sandbox(**envd.options())


@pytest.fixture
def directory(sandbox: Sandbox) -> Iterator[str]:
    path = sandbox.commands.run("mktemp -d /tmp/envd-sdk-XXXXXX").stdout.strip()
    yield path
    sandbox.files.remove(path)


def test_commands(sandbox: Sandbox) -> None:
    assert sandbox.is_running()
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("printf out; printf err >&2; exit 7")
    assert (failed.value.stdout, failed.value.stderr, failed.value.exit_code) == ("out", "err", 7)

    pieces: list[str] = []
    result = sandbox.commands.run("for i in $(seq 1 9000); do printf 'ä€😀'; done", on_stdout=pieces.append)
    assert result.stdout == "ä€😀" * 9000 == "".join(pieces)
    assert sandbox.commands.run("echo $A", envs={"A": "b"}).stdout == "b\n"
    with pytest.raises(InvalidArgumentException, match="cwd '/no/such' does not exist"):
        sandbox.commands.run("true", cwd="/no/such")
    with pytest.raises(AuthenticationException, match="invalid username: 'root123'"):
        sandbox.commands.run("true", user="root123")


def test_a_deadline_keeps_what_came_before_it(sandbox: Sandbox) -> None:
    pieces: list[str] = []
    started = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("printf partial; sleep 41.5", timeout=8, on_stdout=pieces.append)
    assert time.monotonic() - started < 20
    assert pieces == ["partial"]  # a login shell is slow on some machines: hence the 8 s
    assert sandbox.commands.run("pgrep -f 'sleep 41[.]5' || echo none").stdout == "none\n"


def test_background_commands(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; exit 3", background=True, stdin=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.connect(handle.pid).pid == handle.pid
    handle.send_stdin("hello ")
    sandbox.commands.send_stdin(handle.pid, b"world")
    sandbox.commands.close_stdin(handle.pid)
    with pytest.raises(CommandExitException) as ended:
        handle.wait()
    assert (ended.value.stdout, ended.value.exit_code) == ("hello world", 3)

    sleeper = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.kill(sleeper.pid) is True
    assert sandbox.commands.kill(sleeper.pid) is False
    with pytest.raises(CommandExitException):
        sandbox.commands.run(f"kill -0 {sleeper.pid}")
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_a_terminal(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=31, cols=117), envs={"ABC": "123"}, cwd="/")
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo [$ABC]; exit 5\n")
    output: list[bytes] = []
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=output.append)
    assert ended.value.exit_code == 5
    assert b"40 132" in b"".join(output)
    assert b"[123]" in b"".join(output)
    assert sandbox.pty.kill(terminal.pid) is False


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("size", [0, 18 * 1024 + 1, 1 << 20])
def test_files_come_back_as_they_were(sandbox: Sandbox, directory: str, size: int, gzip: bool) -> None:
    data = os.urandom(size)
    for octets in (True, False) if not gzip else (True,):
        path = f"{directory}/new/{octets}"
        info = sandbox.files.write(path, data, gzip=gzip, use_octet_stream=octets)
        assert (info.name, info.path, info.type) == (str(octets), path, FileType.FILE)
        assert sandbox.files.read(path, format="bytes", gzip=gzip) == data
        assert b"".join(sandbox.files.read(path, format="stream")) == data


def test_the_filesystem(sandbox: Sandbox, directory: str) -> None:
    sandbox.files.write_files(
        [{"path": f"{directory}/a", "data": "1"}, {"path": f"{directory}/sub/b", "data": "22"}],
        metadata={"source": "suite"},
    )
    listed = sandbox.files.list(directory, depth=2)
    assert [(entry.name, entry.type) for entry in listed] == [
        ("a", FileType.FILE),
        ("sub", FileType.DIR),
        ("b", FileType.FILE),
    ]
    assert listed[2].metadata == {"source": "suite"}
    assert sandbox.files.make_dir(f"{directory}/dir") is True
    assert sandbox.files.make_dir(f"{directory}/dir") is False
    moved = sandbox.files.rename(f"{directory}/a", f"{directory}/dir/c")
    assert (moved.path, moved.size, moved.mode, moved.owner) == (f"{directory}/dir/c", 1, 0o644, "root")
    assert not sandbox.files.exists(f"{directory}/a")
    sandbox.files.remove(f"{directory}/dir")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read(f"{directory}/dir/c")
    with pytest.raises(SandboxException, match="permission denied"):
        sandbox.files.write("/etc/envd-sdk", "x", user="nobody")


def test_a_watched_directory(sandbox: Sandbox, directory: str) -> None:
    handle = sandbox.files.watch_dir(directory, recursive=True, include_entry=True)
    sandbox.files.write(f"{directory}/f", "x")
    events = handle.get_new_events()
    assert [event.type for event in events] == [
        FilesystemEventType.CREATE,
        FilesystemEventType.CHMOD,
        FilesystemEventType.WRITE,
    ]
    assert {event.entry.path for event in events if event.entry} == {f"{directory}/f"}
    sandbox.commands.run(f"mkdir -p {directory}/x/y && echo 1 > {directory}/x/y/z")
    assert "x/y/z" in [event.name for event in handle.get_new_events()]
    handle.stop()


async def test_a_watch_that_streams(envd: Envd, directory: str) -> None:
    sandbox = AsyncSandbox(**envd.options())
    seen: asyncio.Queue[str] = asyncio.Queue()
    handle = await sandbox.files.watch_dir(directory, on_event=lambda event: seen.put_nowait(event.name))
    await sandbox.files.write(f"{directory}/streamed", "x")
    assert await asyncio.wait_for(seen.get(), 30) == "streamed"
    await handle.stop()


def test_signed_urls(sandbox: Sandbox, directory: str) -> None:
    path = f"{directory}/signed"
    sandbox.files.write(path, "content")
    with urllib.request.urlopen(sandbox.download_url(path, "root", 60)) as answer:
        assert answer.read() == b"content"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(sandbox.download_url(path, "root", use_signature_expiration=-60))
    with refused.value as answer:
        assert json.loads(answer.read()) == {"code": 401, "message": "signature is already expired"}


def test_init_changes_what_new_commands_see(envd: Envd, sandbox: Sandbox) -> None:
    envd.init(envVars={"FOO": "bar"}, sandboxId="iabc", templateId="tabc", defaultWorkdir="/tmp")
    try:
        assert sandbox.commands.run("echo $FOO $E2B_SANDBOX_ID; pwd").stdout == "bar iabc\n/tmp\n"
        assert (envd.root / "run/e2b/.E2B_SANDBOX_ID").read_text() == "iabc"
    finally:
        envd.init()
