"""The edge beside nginx `proxy_pass` (small answers) and beside no proxy at all (bulk)."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time

from benchmarks.context import Context
from benchmarks.edge_rig import BIG, EdgeRig
from benchmarks.measuring import Row, Samples

CONNECTIONS = 32
SMALL_BAR, BULK_BAR = 0.42, 0.65
_SECONDS = 4
_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
_BAD = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")
_CHUNK = 1 << 18


def small(context: Context) -> list[Row]:
    if shutil.which("wrk") is None:
        raise RuntimeError("there is no wrk: run scripts/bootstrap.sh --bench")
    edge, nginx, direct = Samples(), Samples(), Samples()
    with EdgeRig() as rig:
        for _ in range(max(3, context.runs // 2)):
            nginx.add(_rate(rig.proxy, {}))
            edge.add(_rate(rig.edge, rig.headers))
            direct.add(_rate(rig.upstream, {}))
    row = _row("edge-small", f"edge, small GET, {CONNECTIONS} connections", edge, nginx, SMALL_BAR, "1/s")
    row.floor_says = "nginx proxy_pass to the same upstream"
    row.note = f"upstream without a proxy: {direct.p50:,.0f}/s"
    return [row]


def bulk(context: Context) -> list[Row]:
    edge, direct, nginx = Samples(), Samples(), Samples()
    with EdgeRig() as rig:
        for _ in range(max(3, context.runs // 2)):
            direct.add(_download(rig.upstream, {}))
            edge.add(_download(rig.edge, rig.headers))
            nginx.add(_download(rig.proxy, {}))
    row = _row("edge-1g", "edge, 1 GiB download", edge, direct, BULK_BAR, "MiB/s")
    row.floor_says = "the same download from the upstream itself"
    row.note = f"nginx proxy_pass: {nginx.p50:,.0f} MiB/s"
    return [row]


def _row(name: str, title: str, ours: Samples, floor: Samples, factor: float, unit: str) -> Row:
    return Row(
        name,
        title,
        ours.p50,
        unit,
        factor * floor.p50,
        f">= {factor} x floor",
        p95=min(ours.values),
        floor=floor.p50,
        runs=len(ours.values),
        better="higher",
    )


def _rate(port: int, headers: dict[str, str]) -> float:
    """Requests a second, all of them answered well. Raises RuntimeError when one was not."""
    command = ["wrk", "-t2", f"-c{CONNECTIONS}", f"-d{_SECONDS}s"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/small"], check=True, capture_output=True, text=True
    )
    if bad := _BAD.search(done.stdout):
        raise RuntimeError(f"port {port}: {bad[0]}")
    found = _RATE.search(done.stdout)
    if found is None:
        raise RuntimeError(f"wrk says no rate: {done.stdout[-500:]}")
    return float(found[1])


def _download(port: int, headers: dict[str, str]) -> float:
    """MiB a second."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    request = f"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{''.join(lines)}\r\n"
    buffer = bytearray(_CHUNK)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        started = time.perf_counter()
        connection.sendall(request.encode())
        got = 0
        while count := connection.recv_into(buffer):
            got += count
        took = time.perf_counter() - started
    if not BIG < got < BIG + 4096:
        raise RuntimeError(f"port {port}: {got} bytes instead of 1 GiB and a head")
    return BIG / (1 << 20) / took
