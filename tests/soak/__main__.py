"""`python -m tests.soak --duration S --seed N`: many sandboxes at once under random load, and nothing left after it.

Exit code 0 when no operation failed, no sandbox differed from the model, and nothing leaked. Everything that is chosen
follows from the seed; how operations of different sandboxes meet does not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import check_nothing_left, records
from tests.soak.actor import Actor, Tally
from tests.soak.gauges import Gauges

REPORT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Random load on a server.")
    parser.add_argument("--duration", type=float, default=600, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sandboxes", type=int, default=20)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="forkyard-soak-"))
    tally = Tally()
    server = ServerProcess(folder / "d", env={"FORKYARD_LOG_LEVEL": "warning"})
    began = time.monotonic()
    try:
        server.start()
        _load(server, tally, options.duration, options.seed, options.sandboxes)
        _end(server, tally)
    finally:
        if server.alive():
            server.kill()
        server.down()
    _check("left on the host", lambda: check_nothing_left(server.data_dir), tally)
    _report(tally)
    operations = sum(len(times) for times in tally.times.values())
    verdict = f"{len(tally.failures)} failures" if tally.failures else "no failure"
    print(
        f"soak: {operations} operations on {options.sandboxes} sandboxes in {time.monotonic() - began:.0f} s, "
        f"{verdict}, seed {options.seed}"
    )
    if tally.failures:
        for failure in tally.failures:
            print(f"  {failure}")
        print(f"  the server's data and log stay in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _load(server: ServerProcess, tally: Tally, duration: float, seed: int, sandboxes: int) -> None:
    """Actors for that long, with a look at the server's processes now and then."""
    stop = threading.Event()
    actors = [Actor(server, index, seed, stop, tally) for index in range(sandboxes)]
    gauges = Gauges(server)
    for actor in actors:
        actor.start()
    deadline = time.monotonic() + duration
    while (left := deadline - time.monotonic()) > 0 and not tally.broken():
        stop.wait(min(left, REPORT_S))
        gauges.look()
        done = sum(len(times) for times in tally.times.values())
        print(f"  {done} operations, {len(tally.failures)} failures; {gauges}", flush=True)
    stop.set()
    for actor in actors:
        actor.join(120)
        if actor.is_alive():
            tally.failed(f"{actor.name} hangs")
    tally.failures += gauges.problems()


def _end(server: ServerProcess, tally: Tally) -> None:
    """With all sandboxes killed: no record, no file and no connection of them stays."""
    _check("records", lambda: until(lambda: _only_the_template(server), "only the template is left"), tally)
    gauges = Gauges(server)
    _check("descriptors", lambda: until(gauges.at_rest, "descriptors and connections are closed"), tally)
    if server.stop() != 0:
        tally.failed("the server did not stop cleanly")
    for name in ("machines", "volumes", "disks"):
        left = list((server.data_dir / "node" / name).iterdir())
        if left:
            tally.failed(f"node/{name} still holds {len(left)} entries: {left[0].name}")


def _only_the_template(server: ServerProcess) -> bool | None:
    rows = records(server.data_dir)
    standing = [row.id for row in rows.sandboxes if row.state.value != "gone"]
    kept = {snapshot.id for snapshot in rows.snapshots}
    present = {path.name for path in (server.data_dir / "snapshots").iterdir()}
    return (not standing and len(kept) == 1 and kept == present) or None


def _check(what: str, look: object, tally: Tally) -> None:
    try:
        assert callable(look)
        look()
    except AssertionError as error:
        tally.failed(f"{what}: {error}"[:2000])


def _report(tally: Tally) -> None:
    print(f"{'operation':10} {'count':>7} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}")
    for name, times in sorted(tally.times.items()):
        ordered = sorted(times)
        p95 = ordered[int(len(ordered) * 0.95)]
        print(
            f"{name:10} {len(times):7} {median(times) * 1e3:8.0f} {p95 * 1e3:8.0f} {ordered[-1] * 1e3:8.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
