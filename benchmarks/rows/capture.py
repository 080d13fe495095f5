"""Pause and snapshot beside `runsc checkpoint --leave-running`, each on a sandbox restored from the same snapshot."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from benchmarks.context import Context
from benchmarks.floor import Floor, RawSandbox
from benchmarks.measuring import Row, Samples
from benchmarks.sdk import Sdk
from benchmarks.server import Server, mean_stages

_WRITE = "dd if=/dev/urandom of=/home/user/big bs=1M count=1024 status=none"


def pause(context: Context) -> list[Row]:
    def act(server: Server, sandbox_id: str) -> None:
        server.client.call("POST", f"/sandboxes/{sandbox_id}/pause")

    return [_row(context, "pause", "pause, API call", act, paused=True)]


def snapshot(context: Context) -> list[Row]:
    return [_row(context, "snapshot", "snapshot, API call", _snapshot, paused=False)]


def _snapshot(server: Server, sandbox_id: str) -> None:
    made = server.client.call("POST", f"/sandboxes/{sandbox_id}/snapshots", {})
    _made.append(str(made["snapshotID"]))


_made: list[str] = []


def _row(context: Context, name: str, title: str, act: Callable[[Server, str], None], *, paused: bool) -> Row:
    server = context.server(warm=0, empty=4)
    floor = context.floor()
    ours, raw = Samples(), Samples()
    before = server.stages()
    for turn in range(context.runs + 1):
        sandbox = floor.restored(server.template_snapshot())
        sandbox_id = server.create()
        server.client.reach(sandbox_id)
        server.settle(1)
        raw_ms = _checkpoint(floor, sandbox)
        floor.delete(sandbox)
        started = time.perf_counter()
        act(server, sandbox_id)
        took = (time.perf_counter() - started) * 1000
        server.settle(0 if paused else 1)
        server.kill(sandbox_id)
        server.settle(0)
        _drop_snapshots(server)
        if turn:
            raw.add(raw_ms)
            ours.add(took)
        else:
            before = server.stages()
    row = _against_checkpoint(name, title, ours, raw)
    row.stages = mean_stages(before, server.stages())
    return row


def snapshot_after_writes(context: Context) -> list[Row]:
    server = context.server(warm=0, empty=4)
    floor = context.floor()
    ours, raw = Samples(), Samples()
    for _ in range(min(context.runs, 3)):
        sandbox = floor.restored(server.template_snapshot())
        floor.execute(sandbox, "/bin/sh", "-c", _WRITE)
        raw.add(_checkpoint(floor, sandbox))
        floor.delete(sandbox)
        sandbox_id = server.create()
        _run(server, sandbox_id, _WRITE)
        with ours.timed():
            _snapshot(server, sandbox_id)
        server.kill(sandbox_id)
        server.settle(0)
        _drop_snapshots(server)
    row = _against_checkpoint("snapshot-1g", "snapshot after 1 GB of disk writes", ours, raw)
    row.note = "AgentENV says < 100 ms: its disk is layered, gVisor's is part of the checkpoint"
    return [row]


def _run(server: Server, sandbox_id: str, command: str) -> None:
    Sdk(server).connected(sandbox_id).commands.run(command, timeout=300)


def _checkpoint(floor: Floor, sandbox: RawSandbox) -> float:
    directory = floor.scratch(f"checkpoint-{sandbox.id}")
    started = time.perf_counter()
    floor.checkpoint(sandbox, directory)
    took = (time.perf_counter() - started) * 1000
    shutil.rmtree(directory)
    return took


def _drop_snapshots(server: Server) -> None:
    while _made:
        server.client.call("DELETE", f"/templates/{_made.pop()}")


def _against_checkpoint(name: str, title: str, ours: Samples, raw: Samples) -> Row:
    return Row(
        name,
        title,
        ours.p50,
        "ms",
        raw.p50,
        "<= 1.0 x raw checkpoint",
        p95=ours.p95,
        floor=raw.p50,
        floor_says="runsc checkpoint --leave-running",
        runs=len(ours.values),
    )
