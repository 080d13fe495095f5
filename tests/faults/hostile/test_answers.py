"""Servers inside that answer with garbage, endlessly, or lie: the edge and its client get an end or an error."""

from __future__ import annotations

import http.client
import json
import socket
import time

import pytest
from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.hostile.conftest import address_of, as_root, programs, resident_mb
from tests.faults.witness import sdk

pytestmark = pytest.mark.quick

LIAR = r"""
import socket, threading, time
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: "
CHUNKED = b"Transfer-Encoding: chunked\r\n"
def endless(c, start, piece):
    c.sendall(start)
    for _ in range(400000):
        c.sendall(piece)
def plain(*pieces):
    return lambda c: c.sendall(b"".join(pieces))
ANSWERS = {
    "huge-headers": plain(OK, b"X: ", b"a" * (8 << 20), b"\r\n", LENGTH, b"0\r\n\r\n"),
    "many-headers": plain(OK, b"A: b\r\n" * 400000, b"\r\n"),
    "endless-headers": lambda c: endless(c, OK, b"A: " + b"b" * 4000 + b"\r\n"),
    "endless-status": lambda c: endless(c, b"HTTP/1.1 200 ", b"b" * 4096),
    "continue-flood": lambda c: endless(c, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early-hints-flood": lambda c: endless(c, b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    "garbage": plain(bytes(range(256)) * 100),
    "nothing": plain(),
    "too-short": plain(OK, LENGTH, b"1000\r\n\r\nshort"),
    "too-long": plain(OK, LENGTH, b"2\r\n\r\nok", OK, b"X: smuggled\r\n\r\n"),
    "negative-length": plain(OK, LENGTH, b"-1\r\n\r\n"),
    "two-lengths": plain(OK, LENGTH, b"2\r\n", LENGTH, b"5\r\n\r\nok"),
    "length-and-chunked": plain(OK, LENGTH, b"2\r\n", CHUNKED, b"\r\n2\r\nok\r\n0\r\n\r\n"),
    "bad-chunks": plain(OK, CHUNKED, b"\r\nzz\r\nok\r\n"),
    "huge-chunk": plain(OK, CHUNKED, b"\r\nffffffffffffffff\r\nok\r\n"),
    "unasked-upgrade": plain(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw"),
    "bad-status": plain(b"HTTP/1.1 99999999999 Oh\r\n\r\n"),
    "split-header": plain(OK, b"X: a\rInjected: b\r\n", LENGTH, b"0\r\n\r\n"),
}
def serve(c):
    try:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = c.recv(4096)
            if not piece: return
            head += piece
        ANSWERS[head.split(b" ")[1].decode().strip("/")](c)
    except OSError:
        pass
    finally:
        c.close()
listener = socket.create_server(("0.0.0.0", 9000), backlog=64)
open("/tmp/listening", "w").close()
while True:
    c, _ = listener.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"""

LIES = [line.split('"')[1] for line in LIAR.splitlines() if line.startswith('    "')]
FINE = {"too-long", "too-short", "bad-chunks", "huge-chunk"}
"""Lies whose head is right: the client sees a 200, and then the end of its body or a cut, perhaps before it."""
FLOODS = {"continue-flood", "early-hints-flood"}
"""Interim answers may be passed on, for a while."""

ODD = {"length-and-chunked", "split-header"}
"""What HTTP allows to be read in more than one way."""


@pytest.fixture(scope="module")
def liar(hostile_server: ServerProcess) -> Sandbox:
    sandbox = Sandbox.create("base", timeout=900, **sdk(hostile_server))
    sandbox.files.write("/home/user/liar.py", LIAR)
    sandbox.commands.run("setsid python3 /home/user/liar.py </dev/null >/tmp/liar.log 2>&1 &")
    until(lambda: sandbox.files.exists("/tmp/listening") or None, "the liar listens")
    return sandbox


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_answer(hostile_server: ServerProcess, liar: Sandbox, lie: str) -> None:
    status, body, took = ask(hostile_server, liar, f"/{lie}")
    assert took < 20, f"it took {took:.1f} s"
    assert b"smuggled" not in body
    assert len(body) < 1 << 20
    if lie in FINE:
        assert status in (0, 200)
    elif lie in FLOODS:
        assert status in (0, 103, 502)
    elif lie in ODD:
        assert status in (200, 502)
    else:
        assert status == 502
    if status == 502:
        assert json.loads(body)["code"] == 502


def ask(server: ServerProcess, sandbox: Sandbox, path: str) -> tuple[int, bytes, float]:
    """Status (0 for a reset before one), at most 2 MB of the body, seconds."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=25)
    body = b""
    status = 0
    try:
        connection.request(
            "GET", path, headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "9000"}
        )
        answer = connection.getresponse()
        status = answer.status
        body = answer.read(2 << 20)
    except http.client.IncompleteRead as error:
        body = error.partial
    except TimeoutError:
        raise AssertionError(f"{path} never ended") from None
    except (ConnectionError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return status, body, time.monotonic() - began


def test_endless_output_is_bounded_by_its_reader(hostile_server: ServerProcess, attacker: Sandbox) -> None:
    """A client that does not read must not make anybody buffer for it."""
    script = (
        "import socket, threading\n"
        "def serve(c):\n"
        "    try:\n"
        "        c.recv(65536); c.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n')\n"
        "        while True: c.sendall(b'y' * 65536)\n"
        "    except OSError: pass\n"
        "s = socket.create_server(('0.0.0.0', 9000))\n"
        "open('/tmp/listening', 'w').close()\n"
        "while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()\n"
    )
    attacker.files.write("/home/user/endless.py", script)
    attacker.commands.run("setsid python3 /home/user/endless.py </dev/null >/dev/null 2>&1 &")
    until(lambda: attacker.files.exists("/tmp/listening") or None, "it listens")
    before = {pid: resident_mb(pid) for pid, _ in programs(hostile_server)}
    idle: list[socket.socket] = []
    head = (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nE2b-Sandbox-Id: {attacker.sandbox_id}\r\nE2b-Sandbox-Port: 9000\r\n\r\n"
    ).encode()
    for _ in range(8):
        client = socket.create_connection(("127.0.0.1", hostile_server.port), timeout=20)
        client.sendall(head)
        assert client.recv(1024)
        idle.append(client)
    read = 0
    deadline = time.monotonic() + 20
    while read < 64 << 20 and time.monotonic() < deadline:
        read += len(idle[0].recv(1 << 20))
    assert read > 1 << 20
    for pid, name in programs(hostile_server):
        assert resident_mb(pid) - before[pid] < 64, f"{name} grew to {resident_mb(pid):.0f} MB"
    for client in idle:
        client.close()


def test_endless_output_of_a_command(hostile_server: ServerProcess, attacker: Sandbox) -> None:
    before = {pid: resident_mb(pid) for pid, _ in programs(hostile_server)}
    seen = 0

    def count(text: str) -> None:
        nonlocal seen
        seen += len(text)

    command = attacker.commands.run("yes", background=True, timeout=0)
    began = time.monotonic()
    for out, _err, _pty in command:
        count(out or "")
        if seen > 4 << 20 or time.monotonic() - began > 10:
            break
    command.kill()
    assert seen > 1 << 16
    for pid, name in programs(hostile_server):
        assert resident_mb(pid) - before[pid] < 64, f"{name} grew to {resident_mb(pid):.0f} MB"


HIJACK = """
import json, socket
won = []
for address in ADDRESSES:
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s = socket.socket()
        if option is not None:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind((address, 49983))
            s.listen()
            won.append((address, option))
        except OSError:
            pass
        finally:
            s.close()
print(json.dumps(won))
"""


def test_the_port_of_the_daemon_cannot_be_taken(hostile_server: ServerProcess, attacker: Sandbox) -> None:
    own = address_of(hostile_server, attacker.sandbox_id)
    won = json.loads(as_root(attacker, f"ADDRESSES = {['0.0.0.0', own]!r}\n{HIJACK}"))
    assert won == []


def test_odd_names_break_nothing(hostile_server: ServerProcess, attacker: Sandbox) -> None:
    script = (
        "import os, socket\n"
        "os.makedirs('/home/user/odd')\n"
        "for name in (b'new\\nline', b'\\xff\\xfe', b'a' * 255, b'..\\\\..\\\\x', b'%2e%2e%2fx', b'\\x1b[2J', b'-rf',\n"
        "             '\\u202e.txt'.encode(), b'\"quoted\"', b'$(reboot)'):\n"
        "    open(b'/home/user/odd/' + name, 'w').close()\n"
        "os.symlink('../../../../etc/shadow', '/home/user/odd/link')\n"
        "os.symlink('/home/user/odd', '/home/user/odd/loop')\n"
        "socket.sethostname('../../$(id)')\n"
    )
    as_root(attacker, script)
    entries = attacker.files.list("/home/user/odd")
    assert len(entries) >= 10
    assert attacker.commands.run("rm -rf /home/user/odd && echo gone", user="root").stdout == "gone\n"
    child = attacker.fork()[0]
    assert isinstance(child, Sandbox)
    assert child.commands.run("hostname").stdout.strip() == child.sandbox_id
    child.kill()
