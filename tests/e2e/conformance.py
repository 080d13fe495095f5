"""Runs the official Python SDK's own tests that need a server against a server of ours.

    python -m tests.e2e.conformance <folder with the SDK's tests> [--sdk VERSION ...] [-k EXPRESSION]

The ids are in `conformance-ids.txt`. Each SDK version gets a virtual environment of its own; the result goes to
`conformance.json`. The tests run unmodified in a copy outside this repository; the names that `get_host()` gives lead
to this machine, with a certificate of a private authority.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.private_domain import PrivateDomain
from tests.e2e.server import ServerProcess, free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = ("2.45.1", "2.63.0")
"""The suite's own SDK version, and the newest."""

REASONS: Sequence[tuple[str, str]] = (
    (r"/template_(a)?sync/", "template builds are not there yet"),
    (r"test_internet_access\.py", "needs the public internet"),
    (r"test_network\.py::test_(deny_specific_ip|allow_|update_network)", "needs public addresses"),
    (r"firewall_transform|mask_request_host", "needs the httpbin template"),
)
"""Why a test fails, by id, where the reason is not in the failure itself."""


@dataclass(frozen=True)
class Outcome:
    """What one SDK version gave."""

    sdk: str
    passed: list[str]
    failed: dict[str, str]
    """Reason by id."""

    def to_json(self) -> dict[str, object]:
        return {
            "sdk": self.sdk,
            "passed": len(self.passed),
            "failed": len(self.failed),
            "failing": dict(sorted(self.failed.items())),
        }


def main() -> int:
    """0 when every version ran; the numbers are in the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path, help="the SDK's tests folder (packages/python-sdk/tests)")
    parser.add_argument("--sdk", action="append", help="only these SDK versions")
    parser.add_argument(
        "-k", dest="select", help="only ids that contain this; the result file is not written"
    )
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    tests: Path = options.tests.resolve()
    if not (tests / "conftest.py").is_file():
        parser.error(f"{tests} does not hold the SDK's tests (no conftest.py)")
    ids = [
        i
        for i in (HERE / "conformance-ids.txt").read_text().split()
        if not options.select or options.select in i
    ]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="forkyard-conformance-") as scratch:
        for version in options.sdk or VERSIONS:
            outcomes.append(_run_version(version, tests, ids, Path(scratch) / version, options.workers))
            print(f"e2b {version}: {len(outcomes[-1].passed)} of {len(ids)} passed", flush=True)
    if not options.select and not options.sdk:
        _write(outcomes, len(ids))
    for outcome in outcomes:
        for test, reason in sorted(outcome.failed.items()):
            print(f"  {outcome.sdk} FAILED {test}: {reason}")
    return 0


def _run_version(version: str, tests: Path, ids: Sequence[str], scratch: Path, workers: str) -> Outcome:
    python = _environment(version)
    scratch.mkdir(parents=True)
    shutil.copytree(tests, scratch / "tests")
    if (tests.parent / "pytest.ini").exists():
        shutil.copy(tests.parent / "pytest.ini", scratch)
    report = scratch / "report.xml"
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-n",
        workers,
        f"--junitxml={report}",
        "-p",
        "no:cacheprovider",
        *ids,
    ]
    with PrivateDomain(scratch) as domain:
        settings = {**domain.server_env(), "FORKYARD_TLS_PORT": str(free_port())}
        with ServerProcess(scratch / "data", env=settings) as server:
            subprocess.run(
                domain.command(command),
                cwd=scratch,
                env={**os.environ, **server.sdk_env(), **domain.client_env()},
                check=False,
                timeout=3000,
            )
    return _read(report, version, ids)


def _environment(version: str) -> str:
    """A virtual environment with that SDK and what its tests need."""
    folder = ROOT / "build" / "conformance" / version
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = [
            "pytest",
            "pytest-asyncio",
            "pytest-xdist",
            "pytest-timeout",
            "pytest-dotenv",
            "python-dotenv",
        ]
        subprocess.run([python, "-m", "pip", "install", "-q", f"e2b=={version}", *packages], check=True)
        (folder / "complete").touch()
    return str(python)


def _read(report: Path, version: str, ids: Sequence[str]) -> Outcome:
    results = dict(_cases(report)) if report.exists() else {}
    passed = [i for i in ids if results.get(_key(i), "not run") == ""]
    failed = {i: _reason(i, results.get(_key(i), "did not run")) for i in ids if i not in set(passed)}
    return Outcome(version, passed, failed)


def _key(test_id: str) -> str:
    """The same for an id of the list and a case of the report: path words and name."""
    return re.sub(r"[^a-z0-9_]+", ".", test_id.removesuffix(".py").replace(".py::", "::").lower())


def _cases(report: Path) -> Iterable[tuple[str, str]]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        problem = next(
            (case.find(tag) for tag in ("failure", "error", "skipped") if case.find(tag) is not None), None
        )
        message = "" if problem is None else (problem.get("message") or problem.text or "failed").strip()
        yield _key(name), "" if problem is None else message.splitlines()[0][:200]


def _reason(test_id: str, message: str) -> str:
    for pattern, reason in REASONS:
        if re.search(pattern, test_id):
            return f"{reason} ({message})"
    return message


def _write(outcomes: Sequence[Outcome], total: int) -> None:
    result: Mapping[str, object] = {
        "suite": "e2b python-sdk 2.45.1",
        "tests": total,
        "runs": [outcome.to_json() for outcome in outcomes],
    }
    (HERE / "conformance.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
