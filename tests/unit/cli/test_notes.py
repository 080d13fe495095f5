"""What a person at a terminal is told when it is done, and that a script is told nothing."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from forkyard.cli import transfer
from forkyard.cli.commands.files import _save
from forkyard.cli.main import app
from tests.unit.cli.conftest import FakeServer, Run
from tests.unit.cli.test_commands import SANDBOX, sandbox

OnTerminal = Callable[..., tuple[str, str]]

COMMANDS = [
    (("pause", SANDBOX), f"{SANDBOX} is paused\n"),
    (("pause", SANDBOX, "--no-memory"), f"{SANDBOX} is paused, with its files only\n"),
    (("resume", SANDBOX), f"{SANDBOX} is running\n"),
    (("timeout", SANDBOX, "60"), f"{SANDBOX} has 60 s to live from now\n"),
    (("timeout", SANDBOX, "0"), f"{SANDBOX} has no time left\n"),
    (("upload", SANDBOX, "IN", "/d/"), f"1.5 KiB copied to /d/in in {SANDBOX}\n"),
    (("download", SANDBOX, "/d/f", "OUT"), "4 B copied to OUT\n"),
]


@pytest.fixture
def answering(api: FakeServer) -> FakeServer:
    api.on(f"GET /sandboxes/{SANDBOX}", sandbox(envdAccessToken="t"))
    api.on(f"POST /sandboxes/{SANDBOX}/pause", None, 204)
    api.on(f"POST /v2/sandboxes/{SANDBOX}/connect", sandbox(), 201)
    api.on(f"POST /sandboxes/{SANDBOX}/timeout", None, 204)
    api.on("POST /files", [{"path": "/d/in"}])
    api.on("GET /files", b"data")
    return api


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "in").write_bytes(b"x" * 1536)
    return {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out")}


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> OnTerminal:
    """Run a command whose standard error, and nothing else, is a terminal; answers output and error."""

    def invoke(*words: str) -> tuple[str, str]:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        captured = capsys.readouterr()
        assert ended.value.code in (0, None), captured.err
        return captured.out, captured.err

    return invoke


@pytest.mark.parametrize(("words", "said"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_success_is_a_line_on_a_terminal_and_nothing_in_a_pipe(
    answering: FakeServer,
    files: dict[str, str],
    on_terminal: OnTerminal,
    run: Run,
    words: tuple[str, ...],
    said: str,
) -> None:
    given = [files.get(word, word) for word in words]
    for word, path in files.items():
        said = said.replace(word, path)
    printed, told = on_terminal(*given)
    assert told == said
    piped = run(*given, *(["--force"] if words[0] == "download" else []))
    assert (piped.exit_code, piped.stderr, piped.stdout) == (0, "", printed)


def test_a_download_to_standard_output_is_told_nothing_about(
    answering: FakeServer, on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    assert on_terminal("download", SANDBOX, "/d/f", "-")[1] == ""


def test_an_upload_that_takes_long_shows_how_far_it_is(
    answering: FakeServer, files: dict[str, str], on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "QUIET_S", 0.0)
    _, told = on_terminal("upload", SANDBOX, files["IN"], "/d/f")
    assert "━" in told
    assert told.endswith(f"in {SANDBOX}\n")


async def test_a_download_that_takes_long_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(transfer, "QUIET_S", 0.0)
    long = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"half"
        asyncio.get_running_loop().call_later(0, long.set)  # after the timer of the transfer
        await long.wait()
        yield b"rest"

    assert await _save(chunks(), tmp_path / "out") == 8
    assert "4/? bytes" in capsys.readouterr().err
