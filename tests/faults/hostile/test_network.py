"""Root inside tries to reach what is not his, to say he is somebody else, and to be taken for the host."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.faults.hostile.conftest import address_of, as_root
from tests.faults.witness import Witness, sdk

pytestmark = pytest.mark.quick

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def attempt(target):
    host, port, kind = target
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as s:
            s.settimeout(1.5)
            s.connect((host, port))
            s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            s.recv(1)
            return target
    except OSError:
        return None
with ThreadPoolExecutor(32) as pool:
    print(json.dumps([t for t in pool.map(attempt, TARGETS) if t]))
"""

RAW = """
import json, socket, struct
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
sent = 0
for source in SOURCES:
    for target in TARGETS:
        udp = struct.pack("!HHHH", 5353, PORT, 8 + len(b"forged"), 0) + b"forged"
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 7, 0, 64, 17, 0,
                           socket.inet_aton(source), socket.inet_aton(target))
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
                s.sendto(head + udp, (target, 0))
                sent += 1
        except OSError:
            pass
        try:
            with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as s:
                s.sendto(head + udp, ("eth0", 0x0800, 0, 0, b"\\xff" * 6))
                sent += 1
        except OSError:
            pass
print(sent)
"""


@pytest.fixture
def listener() -> Generator[Listener]:
    with Listener() as listening:
        yield listening


class Listener:
    """A server on every address of the host, TCP and UDP, that counts what arrives from elsewhere than the host."""

    def __init__(self) -> None:
        self._tcp = socket.create_server(("0.0.0.0", 0))
        self.port = int(self._tcp.getsockname()[1])
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("0.0.0.0", self.port))
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._accept, self._receive)]
        self.arrived: list[str] = []

    def __enter__(self) -> Listener:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._tcp.shutdown(socket.SHUT_RDWR)
        self._tcp.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"end", ("127.0.0.1", self.port))
        for thread in self._threads:
            thread.join(5)
        self._udp.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._tcp.accept()
            except OSError:
                return
            self.arrived.append(f"tcp {peer}")
            connection.close()

    def _receive(self) -> None:
        while True:
            data, peer = self._udp.recvfrom(2048)
            if data == b"end":
                return
            self.arrived.append(f"udp {peer} {data!r}")


def host_addresses() -> list[str]:
    """Every IPv4 address of the host, and the link-local IPv6 ones."""
    links = json.loads(subprocess.run(["ip", "-json", "address"], capture_output=True, check=True).stdout)
    found = {info["local"] for link in links for info in link["addr_info"] if info["family"] == "inet"}
    return sorted(found)


def test_nothing_of_the_host_or_of_others_can_be_reached(
    hostile_server: ServerProcess, victim: Witness, attacker: Sandbox, listener: Listener
) -> None:
    victim.sandbox.commands.run(
        "cd /tmp && (setsid python3 -m http.server 8000 </dev/null >/dev/null 2>&1 &)"
    )
    other = address_of(hostile_server, victim.id)
    ports = sorted({22, 80, 111, 443, 5432, 8000, listener.port, hostile_server.port, 49983})
    targets = [
        (host, port, "tcp") for host in host_addresses() if not host.startswith("127.") for port in ports
    ]
    targets += [(other, port, "tcp") for port in (22, 8000, 49983)]
    targets += [("169.254.169.254", 80, "tcp"), ("169.254.170.2", 80, "tcp"), ("100.100.100.200", 80, "tcp")]
    targets += [(host, listener.port, "udp") for host in host_addresses()]
    targets += [("fd00:ec2::254", 80, "tcp"), ("fe80::1%eth0", listener.port, "tcp")]
    reached = json.loads(as_root(attacker, f"TARGETS = {targets!r}\n{CONNECT}", timeout=120))
    # Its own loopback has the same name as the host's.
    assert [t for t in reached if not t[0].startswith("127.")] == []
    assert listener.arrived == []


def test_packets_with_a_forged_source_arrive_nowhere(
    hostile_server: ServerProcess, victim: Witness, attacker: Sandbox, listener: Listener
) -> None:
    other = address_of(hostile_server, victim.id)
    own = address_of(hostile_server, attacker.sandbox_id)
    sources = [other, "127.0.0.1", "10.200.255.254", "192.0.2.7", own]
    targets = [host for host in host_addresses() if not host.startswith("127.")]
    as_root(
        attacker,
        f"SOURCES = {sources!r}\nTARGETS = {[*targets, other]!r}\nPORT = {listener.port}\n{RAW}",
        timeout=60,
    )
    assert listener.arrived == []


INTERNAL = """
import http.client, json, socket
found = []
own = [a for a in ADDRESSES]
for host in own:
    for method, path in PATHS:
        try:
            c = http.client.HTTPConnection(host, 49983, timeout=3)
            c.request(method, path, b"{}", HEADERS)
            status = c.getresponse().status
        except OSError as error:
            status = 0
        if status not in (0, 400, 404, 405):
            found.append((host, method, path, status))
print(json.dumps(found))
"""
PATHS = [
    ("POST", "/init"),
    ("POST", "/internal/end-processes"),
    ("POST", "/internal/quiesce"),
    ("POST", "/internal/memory"),
    ("POST", "/internal/forward"),
    ("GET", "/internal/processes"),
    ("POST", "/internal/calls/x"),
]
ENCODED = [
    "/init",
    "/%69nit",
    "//init",
    "/./init",
    "/x/../init",
    "/%2e/init",
    "/x/%2e%2e/init",
    "/INIT",
    "/init/",
    "/init?x=/health",
    "/%2finit",
    "/internal/processes",
    "/x/..%2finternal/processes",
    "/internal%2fprocesses",
    "/%69nternal/%70rocesses",
    "//internal//processes",
    "/internal/calls/x",
    "/freeze",
]


def test_internal_routes_of_the_daemon_are_not_for_the_inside(
    hostile_server: ServerProcess, attacker: Sandbox
) -> None:
    own = address_of(hostile_server, attacker.sandbox_id)
    # Whoever is root inside may even take the host's address for himself.
    gateway = ".".join([*own.split(".")[:3], str(int(own.split(".")[3]) - 1)])
    as_gateway = (
        "import subprocess\n"
        f"subprocess.run(['ip', 'address', 'add', '{gateway}/32', 'dev', 'lo'], capture_output=True)\n"
    )
    for extra in ("", as_gateway):
        for headers in (
            {},
            {"X-Forwarded-For": gateway, "X-Real-IP": gateway, "Forwarded": f"for={gateway}"},
        ):
            addresses = ["127.0.0.1", own, "::1"]
            given = f"ADDRESSES = {addresses!r}\nPATHS = {PATHS!r}\nHEADERS = {headers!r}\n"
            script = extra + given + INTERNAL
            assert json.loads(as_root(attacker, script)) == []


def test_internal_routes_of_the_daemon_are_not_for_clients(
    hostile_server: ServerProcess, attacker: Sandbox
) -> None:
    token = attacker._envd_access_token  # pyright: ignore
    for path in ENCODED:
        for method in ("POST", "GET"):
            connection = http.client.HTTPConnection("127.0.0.1", hostile_server.port, timeout=10)
            headers = {
                "E2b-Sandbox-Id": attacker.sandbox_id,
                "E2b-Sandbox-Port": "49983",
                "X-Access-Token": str(token),
                "X-Forwarded-For": "10.200.0.1",
                "X-Forkyard-Internal": "edge",
            }
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {
                "Host": f"127.0.0.1:{hostile_server.port}",
                "Content-Length": "2",
                **headers,
            }.items():
                connection.putheader(name, value)
            connection.endheaders(b"{}")
            status = connection.getresponse().status
            connection.close()
            assert status in (301, 400, 404, 405, 307, 308), f"{method} {path}: {status}"
    assert attacker.commands.run("echo well").stdout == "well\n"


def test_internal_calls_of_the_server_are_not_for_clients(
    hostile_server: ServerProcess, attacker: Sandbox
) -> None:
    for path in (
        "/internal/wake",
        "/%69nternal/wake",
        "//internal/wake",
        "/x/../internal/wake",
        "/internal/%77ake",
    ):
        connection = http.client.HTTPConnection("127.0.0.1", hostile_server.port, timeout=10)
        body = json.dumps({"id": attacker.sandbox_id, "reason": "request"})
        connection.request(
            "POST", path, body, {"X-Forkyard-Internal": "edge", "Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        assert answer.status in (400, 404), (path, answer.status)
        assert b"token" not in answer.read()
        connection.close()


def test_tokens_open_nothing_but_their_own(
    hostile_server: ServerProcess, victim: Witness, attacker: Sandbox
) -> None:
    token = str(attacker._envd_access_token)  # pyright: ignore
    private = Sandbox.create(
        "base", timeout=100, network={"allow_public_traffic": False}, **sdk(hostile_server)
    )
    try:
        attempts = [(victim.id, "49983", {"X-Access-Token": t}) for t in (token, "", "0" * 64, "\t")]
        attempts += [(victim.id, "49983", {}), (private.sandbox_id, "8000", {})]
        attempts += [(private.sandbox_id, "8000", {"e2b-traffic-access-token": token})]
        for sandbox_id, port, headers in attempts:
            connection = http.client.HTTPConnection("127.0.0.1", hostile_server.port, timeout=10)
            routing = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": port}
            connection.request("GET", "/files?path=/etc/passwd&username=user", headers={**routing, **headers})
            answer = connection.getresponse()
            assert answer.status in (401, 403), (sandbox_id, port, headers, answer.status)
            assert b"root:" not in answer.read()
            connection.close()
    finally:
        private.kill()


def test_the_tokens_of_the_server_are_not_inside(hostile_server: ServerProcess, attacker: Sandbox) -> None:
    key = hostile_server.api_key
    script = (
        f"import os, stat\nfound = []\nkey = '{key[4:12]}' + '{key[12:]}'\n"
        "paths = ['/proc/1/environ', '/proc/1/cmdline', '/proc/self/mountinfo']\n"
        "for root in ('/run', '/etc', '/usr/lib/forkyard', '/root', '/home', '/var/lib/forkyard'):\n"
        "    for folder, _, files in os.walk(root): paths += [os.path.join(folder, name) for name in files]\n"
        "for path in paths:\n"
        "    try:\n"
        "        if stat.S_ISREG(os.lstat(path).st_mode):\n"
        "            if key in open(path, errors='replace').read(1 << 20): found.append(path)\n"
        "    except OSError: pass\n"
        "print(found)"
    )
    assert as_root(attacker, script).strip() == "[]"
    # What of the host shows inside is read-only: the daemon's own directory.
    failed = attacker.commands.run("touch /usr/lib/forkyard/x 2>&1 || echo refused", user="root").stdout
    assert "refused" in failed
    assert not list(Path(hostile_server.data_dir / "node" / "bin").rglob("x"))
