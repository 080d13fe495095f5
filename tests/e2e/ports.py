"""Requests to the ports of a sandbox, through the edge."""

import http.client
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until

TOKEN = "e2b-traffic-access-token"
_PROGRAM = Path(__file__).with_name("port_program.py")


@dataclass(frozen=True)
class Answer:
    status: int
    text: str


def routing(sandbox: Sandbox, port: int, token: str | None = None) -> dict[str, str]:
    """The headers that lead to a port, and past a private one's guard."""
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    return headers if token is None else {**headers, TOKEN: token}


def ask(
    server: ServerProcess,
    sandbox: Sandbox,
    port: int,
    path: str = "/",
    *,
    method: str = "GET",
    token: str | None = None,
    body: Iterable[bytes] | None = None,
) -> Answer:
    """One request on a connection of its own; a body is sent in chunks, without a length."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        headers = routing(sandbox, port, token)
        if body is not None:
            headers["Transfer-Encoding"] = "chunked"
        connection.request(method, path, body, headers, encode_chunked=body is not None)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode())
    finally:
        connection.close()


def serve(server: ServerProcess, sandbox: Sandbox, port: int, address: str = "127.0.0.1") -> None:
    """Start `port_program` behind a port, and wait until it answers."""
    sandbox.files.write("/home/user/port_program.py", _PROGRAM.read_text())
    sandbox.commands.run(f"python3 port_program.py {address} {port}", background=True, timeout=0)
    until(
        lambda: ask(server, sandbox, port, token=sandbox.traffic_access_token).status == 200 or None,
        f"port {port} answers",
    )
