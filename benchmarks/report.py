"""The table on the terminal and the file `results/latest.json`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measuring import Row

ROOT = Path(__file__).resolve().parent
_BEGIN, _END = "<!-- latest -->", "<!-- /latest -->"
LATEST = ROOT / "results" / "latest.json"


def print_table(rows: Sequence[Row], failed: dict[str, str], load: Sequence[float]) -> None:
    print(f"\n{'row':<20} {'p50':>9} {'p95':>9} {'floor':>9} {'ratio':>6}  {'bar':>9}  ")
    for row in rows:
        print(
            f"{row.name:<20} {_number(row.value):>9} {_number(row.p95):>9} {_number(row.floor):>9} "
            f"{'' if row.ratio is None else f'{row.ratio:.2f}':>6}  {_number(row.bar):>9} {row.unit:<5} "
            f"{'met   ' if row.met else 'MISSED'}  {row.title} [{row.bar_says}]{f' ({row.note})' if row.note else ''}"
        )
        if row.stages:
            print("    " + "  ".join(f"{name} {ms:.1f}" for name, ms in sorted(row.stages.items())))
    for name, reason in failed.items():
        print(f"{name:<20} FAILED  {reason}")
    print(
        f"load average: {load[0]:.1f} at the beginning, {load[-1]:.1f} at the end; {machine()['cores']} cores"
    )


def save(rows: Sequence[Row], failed: dict[str, str], load: Sequence[float], *, partial: bool) -> None:
    """Write the results; with `partial` the rows that were not measured keep what the file has."""
    now = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "load": [round(value, 2) for value in load],
    }
    fresh = [row.to_json() | now for row in rows]
    names = {row["name"] for row in fresh}
    kept: list[Any] = []
    if partial and LATEST.exists():
        kept = [row for row in json.loads(LATEST.read_text())["rows"] if row["name"] not in names]
    LATEST.parent.mkdir(exist_ok=True)
    document = now | {
        "machine": machine(),
        "versions": versions(),
        "rows": [*kept, *fresh],
        "failed": failed,
    }
    LATEST.write_text(json.dumps(document, indent=1) + "\n")
    refresh_readme()
    print(f"written to {LATEST.relative_to(ROOT.parent)}", file=sys.stderr)


def refresh_readme() -> None:
    """Put the table of `results/latest.json` into the README, between its marks."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(_BEGIN)
    _old, after = rest.split(_END)
    readme.write_text(f"{before}{_BEGIN}\n{markdown(json.loads(LATEST.read_text()))}\n{_END}{after}")


def markdown(document: dict[str, Any]) -> str:
    """The machine, the table, and the misses."""
    host, used = document["machine"], document["versions"]
    lines = [
        f"Commit {document['commit']}, {document['measured_at']}. {host['cpu']}, {host['cores']} cores, "
        f"{host['memory_gib']} GiB, Linux {host['kernel']}, `rcu_expedited` {host['rcu_expedited']}, "
        f"load average {document['load'][0]} to {document['load'][-1]}; e2b {used['e2b']}, Python {used['python']}, "
        f"{used['nginx']}.",
        "",
        "| row | p50 | p95 | unit | floor | ratio | bar | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        cells = [
            row["name"],
            _number(row["value"]),
            _number(row["p95"]),
            row["unit"],
            _number(row["floor"]),
            ratio,
        ]
        lines.append(
            "| " + " | ".join([*cells, row["bar_says"], "met" if row["met"] else "**missed**"]) + " |"
        )
    missed = [row["name"] for row in document["rows"] if not row["met"]]
    lines += ["", f"Missed: {', '.join(missed) or 'none'}."]
    lines += [f"`{name}` could not be measured: {reason}" for name, reason in document["failed"].items()]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    memory_kb = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    expedited = Path("/sys/kernel/rcu_expedited")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kb / (1 << 20), 1),
        "kernel": platform.release(),
        "rcu_expedited": expedited.read_text().strip() if expedited.exists() else "not there",
        "kvm": Path("/dev/kvm").exists(),
    }


def versions() -> dict[str, str]:
    return {
        "forkyard": version("forkyard"),
        "python": platform.python_version(),
        "e2b": version("e2b"),
        "runsc": _said("build/bin/runsc", "--version").splitlines()[0].removeprefix("runsc version "),
        "nginx": _said("nginx", "-v").strip().removeprefix("nginx version: "),
    }


def commit() -> str:
    dirty = "+" if _said("git", "status", "--porcelain", "--untracked-files=no").strip() else ""
    return _said("git", "rev-parse", "--short", "HEAD").strip() + dirty


def load_average() -> float:
    return os.getloadavg()[0]


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT.parent)
    except OSError:
        return "not there"
    return done.stdout or done.stderr


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    refresh_readme()
