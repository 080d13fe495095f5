"""What each command asks the server for, what it prints, and its exit code."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.cli.conftest import KEY, FakeServer, Run

SANDBOX = "i0000000000000000000"


def sandbox(**other: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "sandboxID": SANDBOX,
        "templateID": "tbase",
        "alias": "base",
        "state": "running",
        "cpuCount": 2,
        "memoryMB": 1024,
        "startedAt": now.isoformat(),
        "endAt": (now + timedelta(seconds=240)).isoformat(),
        "metadata": {},
        **other,
    }


def test_start_asks_for_a_secure_sandbox_that_is_killed_at_its_end(api: FakeServer, run: Run) -> None:
    api.on("POST /v2/sandboxes", sandbox(), 201)
    result = run("start", "base", "--detach", "-e", "A=1=2", "-m", "k=v", "--no-internet", "--auto-resume")
    assert (result.exit_code, json.loads(result.stdout)["sandboxID"]) == (0, SANDBOX)
    assert api.body("POST /v2/sandboxes") == {
        "templateID": "base",
        "timeout": 300,
        "envVars": {"A": "1=2"},
        "metadata": {"k": "v"},
        "autoPause": False,
        "autoResume": {"enabled": True},
        "allow_internet_access": False,
    }
    assert api.keys == [KEY]


def test_aenv_pauses_at_the_end_unless_told_otherwise(
    api: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.on("POST /v2/sandboxes", sandbox(), 201)
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/aenv"])
    run("start", "--detach")
    assert api.body("POST /v2/sandboxes")["autoPause"] is True
    run("start", "--detach", "--no-auto-pause")
    assert api.body("POST /v2/sandboxes")["autoPause"] is False


def test_a_sandbox_without_token_is_made_by_the_first_version(api: FakeServer, run: Run) -> None:
    api.on("POST /sandboxes", sandbox(), 201)
    assert run("start", "--detach", "--no-secure").exit_code == 0
    assert api.body("POST /sandboxes")["secure"] is False


@pytest.mark.parametrize("word", ["list", "ls"])
def test_list_is_json_in_a_pipe(api: FakeServer, run: Run, word: str) -> None:
    api.on("GET /v2/sandboxes", [sandbox()])
    assert json.loads(run(word).stdout)[0]["sandboxID"] == SANDBOX


def test_pages_are_followed_to_the_end(api: FakeServer, run: Run) -> None:
    api.on("GET /v2/sandboxes", [sandbox()])
    api.next_tokens = ["one", "two"]
    assert len(json.loads(run("list").stdout)) == 3


def test_a_table_shows_names_as_they_are(api: FakeServer, run: Run) -> None:
    """Markup of the table library and escape codes in a name must not steer the terminal."""
    api.on("GET /v2/sandboxes", [sandbox(metadata={"a": "[/]\x1b[2Jx"})])
    result = run("list", "--output", "table")
    assert result.exit_code == 0
    assert "a=[/]" in result.stdout
    assert "\x1b" not in result.stdout


def test_an_empty_list_is_said_to_a_person_and_is_empty_json(api: FakeServer, run: Run) -> None:
    api.on("GET /v2/sandboxes", [])
    assert "no sandboxes" in run("list", "-o", "table").stdout
    assert json.loads(run("list").stdout) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (422, 2), (404, 3), (401, 4), (403, 4), (409, 5), (429, 6), (507, 6), (500, 1), (503, 1)],
)
def test_exit_codes_follow_the_answer(api: FakeServer, run: Run, status: int, code: int) -> None:
    api.on(f"POST /sandboxes/{SANDBOX}/pause", {"code": status, "message": "so \x1b[31mit is"}, status)
    result = run("pause", SANDBOX)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "forkyard: so \N{REPLACEMENT CHARACTER}[31mit is\n"


@pytest.mark.parametrize(("error_code", "code"), [("server_stopped", 7), ("unavailable", 1)])
def test_an_edge_without_its_server_is_a_server_that_cannot_be_reached(
    api: FakeServer, run: Run, error_code: str, code: int
) -> None:
    stopped = {"code": 503, "message": "The server is stopped", "error_code": error_code}
    api.on("GET /v2/sandboxes", stopped, 503)
    result = run("list")
    assert (result.exit_code, result.stderr) == (code, "forkyard: The server is stopped\n")


def test_an_answer_that_is_no_json_is_not_our_server(api: FakeServer, run: Run) -> None:
    api.on(f"POST /sandboxes/{SANDBOX}/pause", b"<html>")
    result = run("pause", SANDBOX)
    assert result.exit_code == 7
    assert "no Forkyard server" in result.stderr


def test_an_error_that_is_no_json_is_shown(api: FakeServer, run: Run) -> None:
    api.on(f"POST /sandboxes/{SANDBOX}/pause", b"bad gateway", 502)
    assert run("pause", SANDBOX).stderr == "forkyard: bad gateway\n"


def test_pause_and_resume_say_what_becomes_of_memory(api: FakeServer, run: Run) -> None:
    api.on(f"POST /sandboxes/{SANDBOX}/pause", None, 204)
    run("pause", SANDBOX, "--no-memory")
    assert api.body(f"POST /sandboxes/{SANDBOX}/pause") == {"memory": False}
    api.on(f"POST /v2/sandboxes/{SANDBOX}/connect", sandbox(), 201)
    assert run("resume", SANDBOX, "--timeout", "60").exit_code == 0
    assert api.body(f"POST /v2/sandboxes/{SANDBOX}/connect") == {"timeout": 60}


def test_children_live_as_long_as_their_source_by_default(api: FakeServer, run: Run) -> None:
    api.on(f"GET /sandboxes/{SANDBOX}", sandbox())
    api.on(f"POST /sandboxes/{SANDBOX}/fork", [{"sandbox": sandbox()}], 201)
    assert run("fork", SANDBOX).exit_code == 0
    body = api.body(f"POST /sandboxes/{SANDBOX}/fork")
    assert body["count"] == 1
    assert 200 < body["timeout"] <= 240


def test_one_child_that_failed_is_a_failure(api: FakeServer, run: Run) -> None:
    answer = [{"sandbox": sandbox()}, {"error": {"code": 429, "message": "full"}}]
    api.on(f"POST /sandboxes/{SANDBOX}/fork", answer, 201)
    result = run("fork", SANDBOX, "-n", "2", "-t", "60")
    assert result.exit_code == 1
    assert "full" in result.stdout


def test_delete_tries_all_and_tells_the_first_failure(api: FakeServer, run: Run) -> None:
    api.on(f"DELETE /sandboxes/{SANDBOX}", None, 204)
    result = run("rm", "gone", SANDBOX)
    assert result.exit_code == 3
    assert [route for route, _ in api.asked] == ["DELETE /sandboxes/gone", f"DELETE /sandboxes/{SANDBOX}"]


def test_ids_cannot_lead_to_another_route(api: FakeServer, run: Run) -> None:
    run("delete", "../templates/x")
    assert [route for route, _ in api.asked] == ["DELETE /sandboxes/../templates/x"]


def test_snapshots(api: FakeServer, run: Run) -> None:
    api.on(f"POST /sandboxes/{SANDBOX}/snapshots", {"snapshotID": "s1", "names": ["n:default"]}, 201)
    api.on("GET /snapshots", [{"snapshotID": "s1", "names": ["n:default"]}])
    api.on("DELETE /templates/s1", None, 204)
    assert run("snapshot", "create", SANDBOX, "--name", "n").exit_code == 0
    assert api.body(f"POST /sandboxes/{SANDBOX}/snapshots") == {"name": "n"}
    assert "s1  n:default" in run("snap", "list", "-o", "table").stdout
    assert run("snap", "delete", "s1").exit_code == 0
    assert run("template", "delete", "s2").exit_code == 3


def test_a_key_is_printed_alone(api: FakeServer, run: Run) -> None:
    api.on("POST /v1/api-keys", {"key": KEY, "id": "k"}, 201)
    assert run("keys", "create", "ci", "-o", "table").stdout == KEY + "\n"
    assert api.body("POST /v1/api-keys") == {"name": "ci", "role": "member"}


def test_logs_are_one_object_a_line(api: FakeServer, run: Run) -> None:
    entry = {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "message": "paused", "fields": {"a": "b"}}
    api.on(f"GET /v2/sandboxes/{SANDBOX}/logs", {"logs": [entry, entry]})
    assert [json.loads(line) for line in run("logs", SANDBOX).stdout.splitlines()] == [entry, entry]
    assert "info  paused a=b" in run("logs", SANDBOX, "-o", "table").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("start", "--detach", "-e", "novalue"),
        ("start", "--detach", "-m", "=x"),
        ("start", "--cold"),
        ("start", "--timeout", "soon"),
        ("list", "--output", "yaml"),
        ("timeout", SANDBOX, "abc"),
        ("timeout", SANDBOX),
        ("exec", SANDBOX),
        ("exec", SANDBOX, "-u", "root", "--", "id"),
        ("exec", "-n", SANDBOX, "id"),
        ("upload", SANDBOX, "/no/such/file", "/x"),
        ("upload", SANDBOX, "/tmp", "/x"),
        ("upload", SANDBOX, "-", "/folder/"),
        ("download", SANDBOX, "/", "/tmp"),
        ("download", SANDBOX, "/etc/passwd", "/dev/null"),
        ("serve", "--port", "99999"),
        ("serve", "--tls-cert", "/x"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_2_and_asks_nothing(api: FakeServer, run: Run, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr
    assert "Traceback" not in result.stderr
    assert api.asked == []


def test_a_wrong_settings_file_is_named(run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forkyard.toml").write_text("prot = 1\n")
    result = run("serve", "--data-dir", str(tmp_path))
    assert (result.exit_code, "prot" in result.stderr) == (2, True)
    (tmp_path / "forkyard.toml").write_text("port = \n")
    result = run("serve", "--data-dir", str(tmp_path))
    assert (result.exit_code, "forkyard.toml" in result.stderr) == (2, True)
