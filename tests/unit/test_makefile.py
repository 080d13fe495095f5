"""What `make` says to a user who may not do what the target does."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_make(folder: Path, target: str, user: int) -> subprocess.CompletedProcess[str]:
    """The real Makefile, as that user, with scripts that only say that they were called."""
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name, script in {
        "bin/id": f"echo {user}",
        "scripts/bootstrap.sh": "echo called",
        "scripts/test.sh": "echo called",
        ".venv/bin/python": "true",
        ".venv/bin/forkyard": "true",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(["make", target], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["demo", "test", "serve"])
def test_a_target_that_needs_root_says_so_before_it_does_anything(tmp_path: Path, target: str) -> None:
    refused = run_make(tmp_path, target, 1000)
    assert refused.returncode == 2
    assert f"sudo make {target}\n" in refused.stderr
    assert refused.stdout == ""
    allowed = run_make(tmp_path, target, 0)
    assert (allowed.returncode, allowed.stdout) == (0, "called\n")


def test_what_needs_no_root_runs_as_anybody(tmp_path: Path) -> None:
    assert run_make(tmp_path, "bootstrap", 1000).stdout == "called\n"


def test_a_folder_that_may_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "env.sh").write_text((ROOT / "scripts" / "env.sh").read_text())
    (tmp_path / "build").touch()  # not even root can make a folder in it
    done = subprocess.run(
        ["bash", "-c", ". scripts/env.sh"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"may not write in {tmp_path}/build" in done.stderr
