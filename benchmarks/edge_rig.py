"""The edge and nginx started by hand, side by side on loopback, before one upstream on the host (nginx too)."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.measuring import wait_until
from tests.e2e.server import free_port

ROOT = Path(__file__).resolve().parent.parent
SANDBOX_ID = "benchmarkupstream0"
BIG = 1 << 30

# Both proxies and the upstream may use every core, and keep connections alive on both sides.
_NGINX = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log; worker_processes auto; worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; sendfile on; tcp_nodelay on;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  upstream behind {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{upstream} reuseport; root {dir}/files;
    location = /small {{ default_type text/plain; return 200 "hello\\n"; }}
  }}
  server {{
    listen 127.0.0.1:{proxy} reuseport;
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_set_header Host $host; proxy_buffering off; }}
  }}
}}
"""


class EdgeRig:
    """Ports: `upstream` directly, `proxy` by nginx, `edge` by the edge (with `headers`)."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fybe-"))
        self.upstream, self.proxy, self.edge = free_port(), free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def headers(self) -> dict[str, str]:
        return {"E2b-Sandbox-Id": SANDBOX_ID, "E2b-Sandbox-Port": str(self.upstream)}

    def __enter__(self) -> EdgeRig:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
            process.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        files = self.directory / "files"
        files.mkdir()
        self.directory.chmod(0o755)
        with (files / "big").open("wb") as big:
            big.truncate(BIG)  # sparse: nobody waits for a disk
        config = self.directory / "nginx.conf"
        config.write_text(_NGINX.format(dir=self.directory, upstream=self.upstream, proxy=self.proxy))
        self._spawn(nginx_binary(), "-c", str(config), "-e", str(self.directory / "error.log"))
        binaries = Path(os.environ.get("FORKYARD_BIN_DIR") or ROOT / "build/bin")
        control = self.directory / "edge.sock"
        self._spawn(
            str(binaries / "edge"),
            *("--listen", f"127.0.0.1:{self.edge}", "--control", str(control)),
            *("--api", str(self.directory / "api.sock"), "--domain", "localhost"),
            *("--log", str(self.directory / "edge.log")),
        )
        for port in (self.upstream, self.proxy, self.edge):
            wait_until(lambda port=port: _listens(port), f"port {port}", within_s=20, every_s=0.02)
        route = {
            "id": SANDBOX_ID,
            "generation": 1,
            "state": "running",
            "address": "127.0.0.1",
            "envd_token": None,
            "traffic_token": None,
            "public": True,
            "auto_resume": False,
            "mask_host": None,
        }
        _put(control, "/v1/routes", {"epoch": 1, "routes": [route]})

    def _spawn(self, *command: str) -> None:
        with (self.directory / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            )


def nginx_binary() -> str:
    """nginx on the path, or as the set-up unpacked it. Raises RuntimeError."""
    unpacked = ROOT / "build/tools/nginx/usr/sbin/nginx"
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") or (
        str(unpacked) if unpacked.exists() else None
    )
    if found is None:
        raise RuntimeError("there is no nginx: run scripts/bootstrap.sh --bench")
    return found


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("edge")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def _put(control: Path, path: str, body: object) -> None:
    connection = _UnixConnection(control)
    connection.request("PUT", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    said = response.read()
    connection.close()
    if response.status != 204:
        raise RuntimeError(f"PUT {path}: {response.status} {said[:300]!r}")
