"""Commands and files inside a sandbox, as the wire carries them, hostile answers included."""

import base64
import json
import struct
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeServer, Run
from tests.unit.cli.test_commands import SANDBOX, sandbox

START = "POST /process.Process/Start"


def frames(*messages: Any, end: Any = None) -> bytes:
    """A Connect stream of these messages and its end frame."""
    parts = [(0, message) for message in messages] + ([] if end is None else [(2, end)])
    return b"".join(struct.pack(">BI", flag, len(data := json.dumps(m).encode())) + data for flag, m in parts)


def started(pid: int = 7) -> Any:
    return {"event": {"start": {"pid": pid}}}


def output(stream: str, data: bytes) -> Any:
    return {"event": {"data": {stream: base64.b64encode(data).decode()}}}


def ended(**end: Any) -> Any:
    return {"event": {"end": end}}


@pytest.fixture
def inside(api: FakeServer) -> FakeServer:
    api.on(f"GET /sandboxes/{SANDBOX}", sandbox(envdAccessToken="t"))
    api.on("POST /process.Process/SendInput", {})
    api.on("POST /process.Process/CloseStdin", {})
    return api


def test_streams_are_bytes_and_separate(inside: FakeServer, run: Run, capfdbinary: Any) -> None:
    inside.on(
        START,
        frames(
            started(),
            output("stdout", b"\xff\x00o"),
            output("stderr", b"e"),
            ended(exitCode=7, exited=True),
            end={},
        ),
    )
    result = run(
        "exec", "--no-stdin", "-u", "root", "-w", "/w", "-e", "A=1", SANDBOX, "--", "prog", "-x", "--help"
    )
    assert result.exit_code == 7
    assert capfdbinary.readouterr() == (b"\xff\x00o", b"e")
    body = inside.body(START)
    assert json.loads(body[5:]) == {
        "process": {"cmd": "prog", "args": ["-x", "--help"], "envs": {"A": "1"}, "cwd": "/w"},
        "stdin": False,
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("signal: killed", 137),
        ("signal: segmentation fault (core dumped)", 139),
        ("signal: user defined signal 1", 138),
        ("signal: signal 34", 162),
        ("signal: nonsense", 137),
    ],
)
def test_a_signal_is_128_and_its_number(inside: FakeServer, run: Run, status: str, code: int) -> None:
    inside.on(START, frames(started(), ended(exitCode=-1, status=status), end={}))
    assert run("exec", "--no-stdin", SANDBOX, "x").exit_code == code


@pytest.mark.parametrize(
    "stream",
    [
        frames(started(), output("stdout", b"half")),
        frames(started()) + b"\x00\xff\xff\xff\xff",
        frames(started()) + b"\x00\x00\x00\x00\x02[]",
        frames({"event": {"start": {}}}, end={}),
        frames({"event": [1]}, end={}),
        frames(started(), {"event": {"data": {"stdout": "!!!="}}}, end={}),
        frames(started(), {"event": {"end": {"exitCode": "x"}}}, end={}),
    ],
)
def test_a_broken_or_lying_stream_is_125_and_a_sentence(inside: FakeServer, run: Run, stream: bytes) -> None:
    inside.on(START, stream)
    result = run("exec", "--no-stdin", SANDBOX, "x")
    assert result.exit_code == 125
    assert result.stderr.startswith("forkyard: ")


def test_what_cannot_be_run_is_125(inside: FakeServer, run: Run) -> None:
    inside.on(START, frames(end={"error": {"code": "invalid_argument", "message": "no such command"}}))
    result = run("exec", "--no-stdin", SANDBOX, "x")
    assert (result.exit_code, result.stderr) == (125, "forkyard: no such command\n")


def test_only_a_paused_sandbox_is_connected_to(inside: FakeServer, run: Run) -> None:
    """Connecting to a running one could move its end."""
    inside.on(START, frames(started(), ended(exited=True), end={}))
    assert run("exec", "--no-stdin", SANDBOX, "x").exit_code == 0
    connect = f"POST /v2/sandboxes/{SANDBOX}/connect"
    assert connect not in [route for route, _ in inside.asked]
    inside.on(f"GET /sandboxes/{SANDBOX}", sandbox(state="paused"))
    inside.on(connect, sandbox(envdAccessToken="t"), 201)
    assert run("exec", "--no-stdin", SANDBOX, "x").exit_code == 0
    assert inside.body(connect) == {"timeout": 300}


def test_upload_and_download(inside: FakeServer, run: Run, tmp_path: Any) -> None:
    inside.on("POST /files", [{"path": "/d/f"}])
    source = tmp_path / "f"
    source.write_bytes(b"\x00" * 200_000)
    assert run("upload", SANDBOX, str(source), "/d/").exit_code == 0
    assert inside.body("POST /files") == source.read_bytes()
    inside.on("GET /files", b"data")
    target = tmp_path / "out"
    assert run("download", SANDBOX, "/d/f", str(target)).exit_code == 0
    assert target.read_bytes() == b"data"
    assert run("download", SANDBOX, "/d/f", str(target)).exit_code == 2
    inside.on("GET /files", {"code": 404, "message": "no such file"}, 404)
    assert run("download", SANDBOX, "/d/f", str(target), "--force").exit_code == 3
    assert target.read_bytes() == b"data"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["f", "out"]


def test_a_device_is_written_to_and_not_replaced(inside: FakeServer, run: Run) -> None:
    inside.on("GET /files", b"data")
    assert run("download", SANDBOX, "/d/f", "/dev/null", "--force").exit_code == 0
    with open("/dev/null", "rb") as file:
        assert file.read() == b""


def test_a_local_folder_that_is_not_there_is_named(inside: FakeServer, run: Run) -> None:
    inside.on("GET /files", b"data")
    result = run("download", SANDBOX, "/d/f", "/no/such/folder/f")
    assert result.exit_code == 1
    assert "/no/such/folder" in result.stderr
