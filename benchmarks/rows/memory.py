"""Memory of an idle sandbox: proportional set size of its processes, without the pages of the shared image."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.context import Context
from benchmarks.floor import cgroup_pids
from benchmarks.measuring import Row, Samples

SANDBOXES = 10
BAR_MB = 28.0
_HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")


def idle(context: Context) -> list[Row]:
    server = context.server(warm=0, empty=4)
    floor = context.floor()
    template = server.template_snapshot()
    raw = [floor.restored(template) for _ in range(3)]
    floor_mb = Samples([_pss_mb(floor.group_pids(sandbox)) for sandbox in raw])
    for sandbox in raw:
        floor.delete(sandbox)
    ids = [server.create() for _ in range(SANDBOXES)]
    for sandbox_id in ids:
        server.client.reach(sandbox_id)
    server.settle(SANDBOXES)
    groups = [server.cgroup(str(server.machine(sandbox_id)["container"])) for sandbox_id in ids]
    ours = Samples([_pss_mb(cgroup_pids(group)) for group in groups])
    for sandbox_id in ids:
        server.kill(sandbox_id)
    server.settle(0)
    return [
        Row(
            "memory",
            "memory of an idle base sandbox (PSS of its processes, shared image not counted)",
            ours.p50,
            "MB",
            BAR_MB,
            f"<= {BAR_MB:.0f} MB",
            p95=ours.p95,
            floor=floor_mb.p50,
            floor_says="runsc restore of the same snapshot",
            runs=SANDBOXES,
        )
    ]


def _pss_mb(pids: list[int]) -> float:
    """Of all these processes, in 10^6 bytes."""
    if not pids:
        raise RuntimeError("no processes")
    total_kb = 0.0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total_kb += next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        total_kb -= _image_kb(pid)
    return total_kb * 1024 / 1e6


def _image_kb(pid: int) -> float:
    """What the mappings of root images count in it."""
    image, total = False, 0.0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if _HEADER.match(line):
            image = ".erofs" in line
        elif image and line.startswith("Pss:"):
            total += float(line.split()[1])
    return total
