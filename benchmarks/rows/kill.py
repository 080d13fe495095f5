"""Kill: the API's answer, and until all of it is gone."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.context import Context
from benchmarks.floor import cgroup_pids
from benchmarks.measuring import Row, Samples, wait_until
from benchmarks.server import mean_stages

ANSWER_BAR_MS, GONE_BAR_MS = 15.0, 60.0


def kill(context: Context) -> list[Row]:
    server = context.server(warm=2, empty=4)
    floor = context.floor()
    answered, gone, raw = Samples(), Samples(), Samples()
    before = server.stages()
    for _ in range(context.runs):
        server.settle(0)
        sandbox = floor.restored(server.template_snapshot())
        with raw.timed():
            floor.delete(sandbox)
        sandbox_id = server.create()
        server.client.reach(sandbox_id)
        server.settle(1)
        record = server.machine(sandbox_id)
        container = str(record["container"])
        paths = [server.container_dir(container), server.data_dir / f"node/machines/{record['name']}.json"]
        group = server.cgroup(container)
        pids = cgroup_pids(group)
        if not pids:
            raise RuntimeError(f"no processes in {group}")
        left = [*paths, *(Path(f"/proc/{pid}") for pid in pids)]
        started = time.perf_counter()
        server.kill(sandbox_id)
        answered.add((time.perf_counter() - started) * 1000)
        wait_until(
            lambda left=left: not any(p.exists() for p in left), f"the end of {sandbox_id}", every_s=0.0005
        )
        gone.add((time.perf_counter() - started) * 1000)
    stages = mean_stages(before, server.stages())
    return [
        Row(
            "kill",
            "kill, API answer",
            answered.p50,
            "ms",
            ANSWER_BAR_MS,
            f"p50 <= {ANSWER_BAR_MS:.0f} ms",
            p95=answered.p95,
            runs=len(answered.values),
            stages=stages,
        ),
        Row(
            "kill-gone",
            "kill, all of it gone (processes, files, records)",
            gone.p50,
            "ms",
            GONE_BAR_MS,
            f"p50 <= {GONE_BAR_MS:.0f} ms",
            p95=gone.p95,
            floor=raw.p50,
            floor_says="kill, reap, runsc delete --force",
            runs=len(gone.values),
        ),
    ]
