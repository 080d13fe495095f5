"""A sandbox that can tell afterwards whether anything of it was lost: a file, and a process that counts in memory."""

from __future__ import annotations

import http.client
import json
import secrets
from dataclasses import dataclass
from typing import Any

from e2b import Sandbox
from e2b.connection_config import ApiParams

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until

# The number lives in memory only; the file shows it.
_COUNTER = """
import os, sys, time
n = int(sys.argv[1])
while True:
    n += 1
    try:
        with open("/tmp/.count", "w") as out:
            out.write(f"{os.getpid()} {n}")
        os.rename("/tmp/.count", "/tmp/count")
    except OSError:  # the disk is full
        pass
    time.sleep(0.2)
"""


def sdk(server: ServerProcess, **more: Any) -> ApiParams:
    """Options that point the SDK at a server."""
    return {"api_key": server.api_key, "api_url": server.url, "sandbox_url": server.url, **more}  # pyright: ignore


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any


def call(
    server: ServerProcess,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout_s: float = 90.0,
    **headers: str,
) -> Answer:
    """One request to the API on a connection of its own. Raises OSError and http.client.HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    try:
        sent = {"X-API-Key": server.api_key, "Content-Type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        raw = response.read()
        return Answer(response.status, json.loads(raw) if raw else None)
    finally:
        connection.close()


class Witness:
    """`check` fails when the sandbox lost its file, its process, or what the process knew."""

    def __init__(self, server: ServerProcess, sandbox: Sandbox) -> None:
        self._server = server
        self.sandbox = sandbox
        self.id = sandbox.sandbox_id
        self._content = secrets.token_hex(16)
        self._start = secrets.randbelow(1 << 40) + 1
        self._pid = 0
        self._count = 0
        self._noted = 0

    @classmethod
    def create(cls, server: ServerProcess, template: str = "base", **options: Any) -> Witness:
        witness = cls(server, Sandbox.create(template, timeout=3600, **options, **sdk(server)))
        sandbox = witness.sandbox
        sandbox.files.write("/home/user/content", witness._content)
        sandbox.files.write("/home/user/counter.py", _COUNTER)
        sandbox.commands.run(
            f"setsid python3 /home/user/counter.py {witness._start} </dev/null >/dev/null 2>&1 &", timeout=60
        )
        witness._pid, witness._count = until(lambda: witness._look(sandbox), "the counter counts")
        witness._noted = witness._count
        return witness

    def pause(self) -> None:
        self.note()
        self.sandbox.pause()

    def note(self) -> None:
        """Remember how far the counter has come: no child or copy made from now on is behind it."""
        looked = self._look(self.sandbox)
        if looked is not None:
            self._noted = self._count = looked[1]

    def check(self, sandbox_id: str | None = None) -> None:
        """Of the sandbox itself or of a child or copy of it. Resumes a paused one."""
        sandbox = Sandbox.connect(sandbox_id or self.id, timeout=3600, **sdk(self._server))
        assert sandbox.files.read("/home/user/content") == self._content
        pid, count = until(lambda: self._look(sandbox), "the counter's file is there")
        assert pid == self._pid, "the counter is another process"
        assert count >= (self._noted if sandbox_id else self._count), "the counter went back"
        assert count < self._start + (1 << 39), "the counter began with another number"
        until(lambda: ((n := self._look(sandbox)) and n[1] > count) or None, "the counter goes on")
        assert sandbox.commands.run("echo well").stdout == "well\n"
        if sandbox_id is None:
            self._count = count

    def kill(self) -> None:
        Sandbox.kill(self.id, **sdk(self._server))

    @staticmethod
    def _look(sandbox: Sandbox) -> tuple[int, int] | None:
        if not sandbox.files.exists("/tmp/count"):
            return None
        words = sandbox.files.read("/tmp/count").split()
        return (int(words[0]), int(words[1])) if len(words) == 2 else None
