"""Create and resume: to the API's answer, to the first HTTP answer through the edge, to the first echo by the SDK."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.context import Context, say
from benchmarks.floor import Floor
from benchmarks.measuring import Row, Samples
from benchmarks.rows.shell import SHELL_MARGIN_MS, Shell
from benchmarks.sdk import Sdk
from benchmarks.server import mean_stages

WARM_BAR_MS = 25.0
_GUEST_SERVER = (
    "python3 -u -c 'import http.server as h\n"
    'class H(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200);s.send_header("Content-Length","2");'
    's.end_headers();s.wfile.write(b"ok")\n def log_message(s,*a):pass\n'
    'h.HTTPServer(("0.0.0.0",8000),H).serve_forever()\''
)


def warm(context: Context) -> list[Row]:
    server = context.server(warm=2, empty=4)
    sdk, shell = Sdk(server), Shell(server)
    api, reached, echoed = Samples(), Samples(), Samples()
    before = server.stages()
    for turn in range(context.runs + 1):
        shell.sample(2)
        server.settle(1)
        started = time.perf_counter()
        sandbox_id = server.create()
        answered = time.perf_counter()
        server.client.reach(sandbox_id)
        if turn:  # the first one of a server finds everything cold
            api.add((answered - started) * 1000)
            reached.add((time.perf_counter() - started) * 1000)
        server.kill(sandbox_id)
        server.settle(1)
        took = sdk.create_and_echo()
        if turn:
            echoed.add(took)
    stages = mean_stages(before, server.stages())
    shell.close()
    row = Row(
        "create-warm",
        "create from a warm pool, API answer",
        api.p50,
        "ms",
        WARM_BAR_MS,
        f"p50 <= {WARM_BAR_MS:.0f} ms",
        p95=api.p95,
        runs=len(api.values),
        note=f"first HTTP answer through the edge: {reached.p50:.1f} ms",
        stages=stages,
    )
    return [row, _echo_row("create-warm", "create from a warm pool", WARM_BAR_MS, echoed, shell)]


def known(context: Context) -> list[Row]:
    return _cold(context, "create-known", "create, no warm pool, shape known", empty=4)


def unknown(context: Context) -> list[Row]:
    return _cold(context, "create-unknown", "create, no warm pool, shape never seen", empty=0)


def _cold(context: Context, name: str, title: str, *, empty: int) -> list[Row]:
    server = context.server(warm=0, empty=empty)
    floor = context.floor()
    sdk, shell = Sdk(server), Shell(server)
    snapshot = server.template_snapshot()
    ours, raw, api, echoed = Samples(), Samples(), Samples(), Samples()
    before = server.stages()
    for turn in range(context.runs + 1):
        server.settle(1)
        shell.sample(2)
        raw_ms = _raw_restore(floor, snapshot, created=empty > 0)
        server.settle(1)
        started = time.perf_counter()
        sandbox_id = server.create()
        answered = time.perf_counter()
        server.client.reach(sandbox_id)
        reached = time.perf_counter()
        server.kill(sandbox_id)
        server.settle(1)
        echo_ms = sdk.create_and_echo()
        if turn:
            raw.add(raw_ms)
            ours.add((reached - started) * 1000)
            api.add((answered - started) * 1000)
            echoed.add(echo_ms)
        else:
            before = server.stages()
    stages = mean_stages(before, server.stages())
    shell.close()
    where = "into a created container" if empty else "in its own container"
    row = _against_restore(name, title, ours, raw, where)
    row.note, row.stages = f"API answer: {api.p50:.1f} ms", stages
    return [row, _echo_row(name, title, raw.p50, echoed, shell)]


def resume(context: Context) -> list[Row]:
    server = context.server(warm=0, empty=4)
    floor = context.floor()
    sdk, shell = Sdk(server), Shell(server)
    ours, raw, api, echoed = Samples(), Samples(), Samples(), Samples()
    sandbox_id = server.create()
    sdk.connected(sandbox_id).commands.run(_GUEST_SERVER, background=True, timeout=0)
    server.client.reach(sandbox_id, 8000, "/")
    before = server.stages()
    for turn in range(context.runs + 1):
        shell.sample(2)
        server.client.call("POST", f"/sandboxes/{sandbox_id}/pause")
        server.settle(1)
        raw_ms = _raw_restore(floor, server.paused_snapshot(sandbox_id), created=True, port=8000, path="/")
        server.settle(1)
        started = time.perf_counter()
        server.client.call("POST", f"/v2/sandboxes/{sandbox_id}/connect", {"timeout": 3600})
        answered = time.perf_counter()
        server.client.reach(sandbox_id, 8000, "/")
        reached = time.perf_counter()
        server.settle(2)
        server.client.call("POST", f"/sandboxes/{sandbox_id}/pause")
        server.settle(1)
        echo_ms = sdk.connect_and_echo(sandbox_id)
        server.settle(2)
        if turn:
            raw.add(raw_ms)
            ours.add((reached - started) * 1000)
            api.add((answered - started) * 1000)
            echoed.add(echo_ms)
        else:
            before = server.stages()
    stages = mean_stages(before, server.stages())
    server.kill(sandbox_id)
    shell.close()
    row = _against_restore("resume", "resume, shape known", ours, raw, "into a created container")
    row.note, row.stages = f"API answer: {api.p50:.1f} ms", stages
    return [row, _echo_row("resume", "resume", raw.p50, echoed, shell)]


def _raw_restore(
    floor: Floor, snapshot: Path, *, created: bool, port: int = 49983, path: str = "/health"
) -> float:
    """Milliseconds from the start of the command to the first answer."""
    sandbox = floor.prepare()
    if created:
        floor.create(sandbox)
        floor.address(sandbox)
    started = time.perf_counter()
    floor.restore(sandbox, snapshot)
    floor.reach(sandbox, port, path)
    took = (time.perf_counter() - started) * 1000
    floor.delete(sandbox)
    return took


def _against_restore(name: str, title: str, ours: Samples, raw: Samples, where: str) -> Row:
    return Row(
        name,
        f"{title}: to the first HTTP answer through the edge",
        ours.p50,
        "ms",
        raw.p50,
        "<= 1.0 x raw restore",
        p95=ours.p95,
        floor=raw.p50,
        floor_says=f"runsc restore {where}, to the first HTTP answer",
        runs=len(ours.values),
    )


def _echo_row(name: str, title: str, base_ms: float, echoed: Samples, shell: Shell) -> Row:
    bar = base_ms + shell.p50 + SHELL_MARGIN_MS
    say(f"{title}: login shell alone {shell.p50:.1f} ms")
    return Row(
        f"{name}-echo",
        f"{title}: to the first echo through the SDK",
        echoed.p50,
        "ms",
        bar,
        f"<= {base_ms:.1f} + shell {shell.p50:.1f} + {SHELL_MARGIN_MS:.0f} ms",
        p95=echoed.p95,
        floor=base_ms + shell.p50,
        floor_says="the row above's bar + the login shell alone",
        runs=len(echoed.values),
    )
