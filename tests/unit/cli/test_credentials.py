"""Where server and key come from, and that a key never goes to a server it was not made for."""

import json
import stat
from pathlib import Path

import pytest

from forkyard.cli.credentials import (
    Credentials,
    NotLoggedIn,
    credentials_file,
    find_credentials,
    save_credentials,
)
from tests.unit.cli.conftest import KEY, FakeServer, Run


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    data = tmp_path / "local"
    data.mkdir()
    (data / "api-key").write_text("local\n")
    return {"HOME": str(tmp_path), "FORKYARD_DATA_DIR": str(data)}


def test_this_machines_server_is_the_default(environ: dict[str, str]) -> None:
    assert find_credentials(environ) == Credentials("http://localhost:3000", "local")


def test_the_environment_wins_over_what_was_saved(environ: dict[str, str]) -> None:
    save_credentials(Credentials("http://saved", "k1"), environ)
    assert find_credentials(environ) == Credentials("http://saved", "k1")
    given = {**environ, "E2B_API_URL": "http://other/", "E2B_API_KEY": " k2\n"}
    assert find_credentials(given) == Credentials("http://other", "k2")


def test_no_key_goes_to_a_server_it_was_not_made_for(environ: dict[str, str]) -> None:
    save_credentials(Credentials("http://saved", "k1"), environ)
    with pytest.raises(NotLoggedIn):
        find_credentials({**environ, "E2B_API_URL": "http://other"})
    assert find_credentials({**environ, "E2B_API_URL": "http://127.0.0.1:4000"}).key == "local"


def test_a_key_that_breaks_headers_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(NotLoggedIn):
        find_credentials({**environ, "E2B_API_KEY": "a\r\nX-Other: b"})


def test_the_file_is_for_its_owner_alone(environ: dict[str, str]) -> None:
    path = credentials_file(environ)
    path.parent.mkdir(parents=True)
    path.with_suffix(".part").touch(0o644)
    save_credentials(Credentials("http://s", "k"), environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("{damaged")
    assert find_credentials(environ).key == "local"


def test_auth_saves_only_a_key_that_works(api: FakeServer, run: Run) -> None:
    api.on("GET /templates", {"code": 401, "message": "no such key"}, 401)
    assert run("auth", "--url", "http://server.test", "--key", KEY).exit_code == 4
    assert not credentials_file().exists()
    api.on("GET /templates", [])
    assert run("auth", stdin=KEY + "\n").exit_code == 0
    assert json.loads(credentials_file().read_text()) == {"url": "http://server.test", "key": KEY}
    assert run("auth", stdin="\n").exit_code == 2


@pytest.mark.parametrize(
    ("url", "data_dir", "place"),
    [
        ("http://localhost:4000", "/no/such/data", "/no/such/data/api-key,"),
        (
            "http://server.test",
            "/no/such/data",
            "DATA_DIR/api-key on its machine (/var/lib/forkyard/api-key by default)",
        ),
    ],
)
def test_without_a_key_it_says_where_the_first_one_lies(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, data_dir: str, place: str
) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    monkeypatch.setenv("E2B_API_URL", url)
    monkeypatch.setenv("FORKYARD_DATA_DIR", data_dir)
    result = run("list")
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
    assert result.stderr.startswith(
        f"forkyard: No API key for {url}: set E2B_API_KEY, or run `forkyard auth`;"
    )
    assert place in result.stderr
