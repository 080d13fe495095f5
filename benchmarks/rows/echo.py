"""`commands.run("echo")` on a running sandbox, through the SDK."""

from __future__ import annotations

from benchmarks.context import Context
from benchmarks.measuring import Row, Samples
from benchmarks.rows.shell import SHELL_MARGIN_MS, Shell


def running(context: Context) -> list[Row]:
    server = context.server(warm=2, empty=4)
    shell = Shell(server)
    server.settle(1)
    echoed = Samples()
    shell.sandbox.commands.run("echo hi")
    for _ in range(context.runs):
        shell.sample(4)
        for _ in range(4):
            with echoed.timed():
                shell.sandbox.commands.run("echo hi")
    shell.close()
    return [
        Row(
            "echo",
            'commands.run("echo") on a running sandbox',
            echoed.p50,
            "ms",
            shell.p50 + SHELL_MARGIN_MS,
            f"<= shell + {SHELL_MARGIN_MS:.0f} ms",
            p95=echoed.p95,
            floor=shell.p50,
            floor_says="the same login shell spawned inside",
            runs=len(echoed.values),
        )
    ]
