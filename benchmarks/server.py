"""The product: a server with the settings that a row asks for, and what is to be known of its machines."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.http import Client
from benchmarks.measuring import wait_until
from forkyard.sandboxes.driver import Shape
from tests.e2e.server import ServerProcess

TEMPLATE = "base"
_QUIET_LOOKS = 8
"""Looks 20 ms apart that must all find the same: pools are filled one machine after another."""
_STAGE = re.compile(
    r'^forkyard_sandbox_stage_duration_seconds_(sum|count)\{operation="(\w+)",outcome="ok",stage="(\w+)"\} (\S+)$'
)


class Server:
    """One `forkyard serve`. At the end nothing of it is left."""

    def __init__(self, *, warm: int, empty: int) -> None:
        """`warm` restored and `empty` empty machines are kept ready."""
        self.warm, self.empty = warm, empty
        root = Path(os.environ.get("FORKYARD_BENCH_DIR") or tempfile.gettempdir())
        self.data_dir = Path(tempfile.mkdtemp(prefix="fybs-", dir=root)) / "d"
        self.process = ServerProcess(
            self.data_dir,
            env={
                "FORKYARD_WARM_POOL": str(warm),
                "FORKYARD_EMPTY_POOL": str(empty),
                "FORKYARD_LOG_LEVEL": "warning",
            },
        )

    def __enter__(self) -> Server:
        self.process.__enter__()
        self.client = self.new_client()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        try:
            self.process.__exit__(kind, error, trace)
        except subprocess.TimeoutExpired:
            self.process.down()  # on a machine that is too busy to stop in time; its process was killed
        # Never while anything of it runs: it would be found no more.
        shutil.rmtree(self.data_dir.parent, ignore_errors=True)

    def new_client(self) -> Client:
        return Client(self.process.port, self.process.api_key)

    # -- sandboxes -----------------------------------------------------------------------------------

    def create(self, client: Client | None = None, template: str = TEMPLATE) -> str:
        body = {"templateID": template, "timeout": 3600}
        return str((client or self.client).call("POST", "/sandboxes", body)["sandboxID"])

    def kill(self, sandbox_id: str) -> None:
        self.client.call("DELETE", f"/sandboxes/{sandbox_id}")

    def settle(self, live: int) -> None:
        """Wait until `live` sandboxes are all that runs beside full pools, and nothing is going on."""
        quiet = 0

        def settled() -> bool:
            nonlocal quiet
            phases = list(self._phases().values())
            empties = phases.count("created")
            full = len(self._machines()) == live + self.warm and phases.count("running") == live + self.warm
            # An empty machine is made only for a shape that was asked for before.
            full = full and len(phases) == live + self.warm + empties and (empties > 0 or self.empty == 0)
            quiet = quiet + 1 if full else 0
            return quiet >= _QUIET_LOOKS

        wait_until(settled, f"pools of {self.warm} and {self.empty} beside {live}", within_s=60, every_s=0.02)

    # -- machines ------------------------------------------------------------------------------------

    def template_snapshot(self) -> Path:
        with self._database() as database:
            (snapshot_id,) = database.execute(
                "select snapshot_id from snapshot_names where name = ? and team_id = ''", (TEMPLATE,)
            ).fetchone()
        return self.data_dir / "snapshots" / str(snapshot_id)

    def paused_snapshot(self, sandbox_id: str) -> Path:
        with self._database() as database:
            (snapshot_id,) = database.execute(
                "select snapshot_id from sandboxes where id = ?", (sandbox_id,)
            ).fetchone()
        return self.data_dir / "snapshots" / str(snapshot_id)

    def shape(self) -> Shape:
        manifest = json.loads((self.template_snapshot() / "manifest.json").read_text())
        return Shape(**manifest["requires"]["shape"])

    def machine(self, sandbox_id: str) -> dict[str, Any]:
        """The driver's record of a running sandbox's machine."""
        with self._database() as database:
            (handle,) = database.execute(
                "select handle from sandboxes where id = ?", (sandbox_id,)
            ).fetchone()
        name = json.loads(handle)["name"]
        return json.loads((self.data_dir / f"node/machines/{name}.json").read_text())

    def container_dir(self, container: str) -> Path:
        return next(self.data_dir.glob(f"node/keeper/*/{container}"))

    def cgroup(self, container: str) -> str:
        spec = json.loads((self.container_dir(container) / "config.json").read_text())
        return str(spec["linux"]["cgroupsPath"]).lstrip("/")

    def _phases(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in self.data_dir.glob("node/keeper/*/*/keeper.json"):
            try:
                found[path.parent.name] = json.loads(path.read_text())["phase"]
            except (OSError, ValueError):
                continue
        return found

    def _machines(self) -> list[str]:
        return [path.stem for path in self.data_dir.glob("node/machines/*.json")]

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.data_dir / 'forkyard.db'}?mode=ro", uri=True)

    # -- what the server says ------------------------------------------------------------------------

    def stages(self) -> dict[str, tuple[float, int]]:
        """Seconds and count so far by `operation.stage`."""
        text = self.metrics()
        found: dict[str, dict[str, float]] = {}
        for line in text.splitlines():
            if match := _STAGE.match(line):
                found.setdefault(f"{match[2]}.{match[3]}", {})[match[1]] = float(match[4])
        return {name: (v["sum"], int(v["count"])) for name, v in found.items()}

    def metrics(self) -> str:
        return self.client.text("/metrics")


def mean_stages(
    before: dict[str, tuple[float, int]], after: dict[str, tuple[float, int]]
) -> dict[str, float]:
    """Mean milliseconds by stage of what happened in between."""
    result: dict[str, float] = {}
    for name, (total, count) in after.items():
        total_before, count_before = before.get(name, (0.0, 0))
        if count > count_before:
            result[name] = round((total - total_before) / (count - count_before) * 1000, 2)
    return result
