"""The variables that `forkyard serve` prints work as they are, with the unmodified SDKs, in each mode of the port."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.private_domain import DOMAIN, PrivateDomain
from tests.e2e.server import ServerProcess, free_port

JS = Path(__file__).parent / "js"

# Run by a process of its own, whose whole environment is what the server printed.
PYTHON = """
import os
import urllib.request
from e2b import Sandbox

sandbox = Sandbox.create("base", timeout=120)
try:
    assert sandbox.commands.run("echo hello").stdout == "hello\\n"
    sandbox.files.write("a.txt", "text")
    with urllib.request.urlopen(sandbox.download_url("a.txt"), timeout=20) as answer:
        assert answer.read() == b"text"
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    host = sandbox.get_host(8000)
    # Not every resolver knows the names below localhost.
    plain = os.environ.get("E2B_SANDBOX_URL")
    url = f"{plain or 'https://' + host}/a.txt"
    for _ in range(200):
        try:
            request = urllib.request.Request(url, headers={"Host": host})
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.read() == b"text"
            break
        except urllib.error.HTTPError as error:  # the program is not up yet
            assert error.code == 502
    else:
        raise AssertionError("the port was never open")
    sandbox.pause()
    assert sandbox.connect().files.read("a.txt") == "text"
    print("works with", host)
finally:
    sandbox.kill()
"""


def run_python(server: ServerProcess, domain: PrivateDomain | None = None) -> str:
    command = [sys.executable, "-c", PYTHON]
    return _run(domain.command(command) if domain else command, server, domain)


def run_javascript(server: ServerProcess, domain: PrivateDomain) -> str:
    node = shutil.which("node") or str(Path(sys.executable).with_name("node"))
    command = [node, "--test", "--test-timeout=100000", str(JS / "smoke.test.mjs")]
    return _run(domain.command(command), server, domain)


def _run(command: list[str], server: ServerProcess, domain: PrivateDomain | None) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", **server.printed_env()}
    done = subprocess.run(
        command,
        cwd=JS,
        env={**environment, **(domain.client_env() if domain else {})},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plain(server: ServerProcess) -> None:
    assert set(server.printed_env()) == {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN", "E2B_API_KEY"}
    assert f".localhost:{server.port}" in run_python(server)


@pytest.mark.parametrize(
    "second_port", [False, True], ids=["tls on the only port", "tls on a port of its own"]
)
def test_tls(tmp_path: Path, second_port: bool) -> None:
    with PrivateDomain(tmp_path) as domain:
        tls_port = free_port()
        extra = {"FORKYARD_TLS_PORT": str(tls_port)} if second_port else {}
        server = ServerProcess(
            tmp_path / "data",
            env={**domain.server_env(), **extra},
            authority=None if second_port else domain.authority,
        )
        with server:
            at = f"{DOMAIN}:{tls_port if second_port else server.port}"
            printed = server.printed_env()
            assert (printed["E2B_DOMAIN"], "E2B_SANDBOX_URL" in printed) == (at, False)
            assert f".{at}" in run_python(server, domain)
            run_javascript(server, domain)


def test_a_changed_port_replaces_the_edge_that_outlived_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    try:
        server.kill()  # the edge goes on, with the old port
        server.port = free_port()
        server.start()
        assert f":{server.port}" in server.printed_env()["E2B_API_URL"]
        assert "works with" in run_python(server)
    finally:
        server.__exit__(None, None, None)
