"""Fork a running sandbox into 16, until all of them answer."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.context import Context
from benchmarks.floor import Floor
from benchmarks.measuring import Row, Samples
from benchmarks.server import Server, mean_stages

CHILDREN = 16
FACTOR = 0.9


def fork_16(context: Context) -> list[Row]:
    ready = _measure(context, empty=CHILDREN)
    row = _row("fork-16", "fork into 16, all answering", *ready)
    plain = _measure(context, empty=4)
    row.note = f"with the default of 4 empty machines ready: {plain[0].p50:.0f} ms"
    return [row]


def _measure(context: Context, *, empty: int) -> tuple[Samples, Samples, dict[str, float]]:
    server = context.server(warm=0, empty=empty)
    floor = context.floor()
    ours, raw = Samples(), Samples()
    before: dict[str, tuple[float, int]] = {}
    for turn in range(max(3, context.runs // 2) + 1):
        source = server.create()
        server.client.reach(source)
        server.settle(1)
        raw_ms = _raw(floor, server.template_snapshot())
        server.settle(1)
        started = time.perf_counter()
        children = _fork(server, source)
        took = (time.perf_counter() - started) * 1000
        for sandbox_id in [source, *children]:
            server.kill(sandbox_id)
        server.settle(0)
        if turn:  # the first fork says how many empty machines are wanted
            raw.add(raw_ms)
            ours.add(took)
        else:
            before = server.stages()
    return ours, raw, mean_stages(before, server.stages())


def _fork(server: Server, source: str) -> list[str]:
    results = server.client.call("POST", f"/sandboxes/{source}/fork", {"count": CHILDREN, "timeout": 3600})
    children = [str(result["sandbox"]["sandboxID"]) for result in results]
    with ThreadPoolExecutor(CHILDREN) as pool:
        clients = [server.new_client() for _ in children]
        list(pool.map(lambda pair: pair[0].reach(pair[1]), zip(clients, children, strict=True)))
        for client in clients:
            client.close()
    return children


def _raw(floor: Floor, template: Path) -> float:
    """A checkpoint and 16 restores into containers that were created before."""
    source = floor.restored(template)
    children = [floor.prepare() for _ in range(CHILDREN)]
    parallel = max(2, os.cpu_count() or 2)  # as the server forks
    floor.together(floor.create, children, parallel)
    for child in children:
        floor.address(child)
    directory = floor.scratch("fork")
    started = time.perf_counter()
    floor.checkpoint(source, directory)
    floor.together(lambda child: floor.restore(child, directory), children, parallel)
    for child in children:
        floor.reach(child)
    took = (time.perf_counter() - started) * 1000
    for sandbox in [source, *children]:
        floor.delete(sandbox)
    shutil.rmtree(directory)
    return took


def _row(name: str, title: str, ours: Samples, raw: Samples, stages: dict[str, float]) -> Row:
    return Row(
        name,
        title,
        ours.p50,
        "ms",
        FACTOR * raw.p50,
        f"<= {FACTOR} x raw",
        p95=ours.p95,
        floor=raw.p50,
        floor_says="runsc checkpoint + 16 restores into created containers, as many at a time as cores",
        runs=len(ours.values),
        stages=stages,
    )
