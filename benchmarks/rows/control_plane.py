"""The control plane with 100 running and 900 paused sandboxes, and restarted under load."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from http.client import HTTPException

from benchmarks.context import Context
from benchmarks.measuring import Row, Samples
from benchmarks.server import Server

RUNNING, PAUSED = 100, 900
LIST_BAR_MS, CPU_BAR_PERCENT = 20.0, 2.0
_IDLE_S, _SCRAPE_S = 30.0, 5.0
_LOAD_THREADS = 4
_LOAD_PAUSE_S = 0.003
"""A server that starts needs the cores too."""
_PAGE = "/v2/sandboxes?limit=100&state=running,paused"


def crowd(context: Context) -> list[Row]:
    """The running ones are real; of the paused ones one is, and the others are rows that share its snapshot."""
    server = context.server(warm=2, empty=4)
    server.settle(0)
    ids = [server.create() for _ in range(RUNNING)]
    paused = server.create()
    server.client.call("POST", f"/sandboxes/{paused}/pause")
    _multiply(server, paused, PAUSED - 1)
    server.settle(RUNNING)
    pages = Samples()
    for _ in range(20):
        with pages.timed():
            page = server.client.call("GET", _PAGE)
        if len(page) != 100:
            raise RuntimeError(f"a page of {len(page)} sandboxes")
    cpu = _idle_cpu_percent(server)
    _forget_rows(server)
    for sandbox_id in [*ids, paused]:
        server.kill(sandbox_id)
    server.settle(0)
    title = f"with {RUNNING} running and {PAUSED} paused"
    return [
        Row("list", f"{title}: list page of 100", pages.p50, "ms", LIST_BAR_MS, f"<= {LIST_BAR_MS:.0f} ms",
            p95=pages.p95, runs=len(pages.values)),
        Row("idle-cpu", f"{title}: idle CPU of the server, /metrics read every {_SCRAPE_S:.0f} s", cpu, "%",
            CPU_BAR_PERCENT, f"<= {CPU_BAR_PERCENT:.0f} % of a core", runs=1,
            note=f"over {_IDLE_S:.0f} s; its samples of every sandbox each 5 s are in it"),
    ]  # fmt: skip


def restart(context: Context) -> list[Row]:
    """Requests go to a sandbox without a pause while the server is stopped, and while it is killed."""
    server = context.server(warm=2, empty=4)
    sandbox_id = server.create()
    server.client.reach(sandbox_id)
    stop, counts, failures = threading.Event(), [0] * _LOAD_THREADS, list[str]()

    def load(number: int) -> None:
        client = server.new_client()
        while not stop.wait(_LOAD_PAUSE_S):
            try:
                status = client.status_of(sandbox_id)
            except (OSError, HTTPException) as error:
                failures.append(repr(error))
                continue
            counts[number] += 1
            if not 200 <= status < 300:
                failures.append(f"status {status}")

    threads = [threading.Thread(target=load, args=(number,)) for number in range(_LOAD_THREADS)]
    for thread in threads:
        thread.start()
    try:
        for end in (server.process.stop, server.process.kill) * 2:
            end()
            time.sleep(0.5)
            server.process.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    server.kill(sandbox_id)
    server.settle(0)
    return [
        Row("restart", "server stopped and killed, twice each, under load: failed data-plane requests",
            len(failures), "", 0, "none", runs=sum(counts), note="; ".join(sorted(set(failures)))[:300]),
    ]  # fmt: skip


def _multiply(server: Server, sandbox_id: str, times: int) -> None:
    """Write `times` copies of a paused sandbox's row."""
    with sqlite3.connect(server.data_dir / "forkyard.db", timeout=30) as database:
        columns = [row[1] for row in database.execute("pragma table_info(sandboxes)") if row[1] != "id"]
        names = ", ".join(columns)
        database.executemany(
            # The names are those of our own table.
            f"insert into sandboxes (id, {names}) select ?, {names} from sandboxes where id = ?",  # noqa: S608
            [(f"b{number:019d}", sandbox_id) for number in range(times)],
        )


def _forget_rows(server: Server) -> None:
    with sqlite3.connect(server.data_dir / "forkyard.db", timeout=30) as database:
        database.execute("delete from sandboxes where id like 'b0000%'")


def _idle_cpu_percent(server: Server) -> float:
    pid = server.process.pid
    before, started = _cpu_s(pid), time.monotonic()
    while (left := _IDLE_S - (time.monotonic() - started)) > 0:
        time.sleep(min(_SCRAPE_S, left))
        server.metrics()
    return (_cpu_s(pid) - before) / (time.monotonic() - started) * 100


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
