"""20 creates at once, 200 in all, beside raw restores at the same parallelism."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

from benchmarks.context import Context
from benchmarks.floor import RawSandbox
from benchmarks.measuring import Row, Samples
from benchmarks.server import Server

AT_ONCE, IN_ALL, IN_ALL_RAW = 20, 200, 60


def burst(context: Context) -> list[Row]:
    server = context.server(warm=2, empty=4)
    floor = context.floor()
    template = server.template_snapshot()
    server.settle(0)

    def raw_one(sandbox: RawSandbox) -> None:
        floor.restore(sandbox, template)
        floor.reach(sandbox)

    prepared = [floor.prepare() for _ in range(IN_ALL_RAW)]
    started = time.perf_counter()
    floor.together(raw_one, prepared, AT_ONCE)
    raw_rate = IN_ALL_RAW / (time.perf_counter() - started)
    for sandbox in prepared:
        floor.delete(sandbox)
    took, failures, rate = _creates(server)
    spread = took.p95 / took.p50
    return [
        Row(
            "burst-failures",
            f"{AT_ONCE} creates at once, {IN_ALL} in all: failures",
            len(failures),
            "",
            0,
            "none",
            runs=IN_ALL,
            note="; ".join(sorted(set(failures)))[:300],
        ),
        Row("burst-spread", "the same: p95 / p50", spread, "x", 3.0, "<= 3", p95=took.p95, runs=IN_ALL,
            note=f"p50 {took.p50:.0f} ms, p95 {took.p95:.0f} ms"),
        Row(
            "burst-rate",
            "the same: creates a second, each to its first HTTP answer",
            rate,
            "1/s",
            raw_rate,
            ">= 1.0 x raw restores",
            floor=raw_rate,
            floor_says=f"runsc restore in its own container, {AT_ONCE} at a time",
            runs=IN_ALL,
            better="higher",
        ),
    ]  # fmt: skip


def _creates(server: Server) -> tuple[Samples, list[str], float]:
    """Times of the API's answers, what failed, and creates a second."""
    took, failures, made = Samples(), list[str](), list[str]()

    def one(_number: int) -> None:
        client = server.new_client()
        try:
            with took.timed():
                sandbox_id = server.create(client)
            made.append(sandbox_id)
            client.reach(sandbox_id)
        except (RuntimeError, OSError, HTTPException) as error:
            failures.append(str(error)[:200])
        finally:
            client.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(IN_ALL)))
    rate = (IN_ALL - len(failures)) / (time.perf_counter() - started)
    for sandbox_id in made:
        server.kill(sandbox_id)
    server.settle(0)
    return took, failures, rate
