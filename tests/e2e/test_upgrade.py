"""An upgrade: with another envd and another runtime beside the old ones, what was paused before still resumes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from e2b import Sandbox

from tests.e2e.inside import counter_went_on, start_counter
from tests.e2e.server import FORKYARD, ServerProcess

BINARIES = Path(__file__).parents[2] / "build" / "bin"


@pytest.fixture
def other_binaries(tmp_path: Path) -> Path:
    """The same programs with other hashes: bytes behind the end of an executable change nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("keeper", "envd", "edge"):
        shutil.copy(BINARIES / name, folder / name)
        with (folder / name).open("ab") as file:
            file.write(b"upgraded")
    return folder


def test_paused_before_the_upgrade_resumes_after_it(
    tmp_path: Path, other_binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ServerProcess(tmp_path / "data")
    after = ServerProcess(tmp_path / "data", port=before.port, env={"FORKYARD_BIN_DIR": str(other_binaries)})
    before.start()
    try:
        for name, value in before.sdk_env().items():
            monkeypatch.setenv(name, value)
        old = Sandbox.create(timeout=600)
        snapshot = Sandbox.create(timeout=600)
        count = start_counter(old)
        snapshot_id = snapshot.create_snapshot(name="before-upgrade").snapshot_id
        snapshot.kill()
        running = Sandbox.create(timeout=600)
        old.pause()
        assert before.stop() == 0
        after.start()

        assert running.commands.run("echo survived").stdout == "survived\n"
        old.connect(timeout=600)
        counter_went_on(old, count)
        assert Sandbox.create(snapshot_id).commands.run("echo old").stdout == "old\n"
        assert Sandbox.create("base").commands.run("echo new").stdout == "new\n"
        assert _versions(after) == {"envd version": 2, "runtime version": 2, "image version": 1}
    finally:
        after.__exit__(None, None, None)


def _versions(server: ServerProcess) -> dict[str, int]:
    """How many versions of each kind doctor lists."""
    done = subprocess.run(
        [FORKYARD, "doctor", "--data-dir", str(server.data_dir), "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    counts: dict[str, int] = {}
    for result in json.loads(done.stdout):
        if result["name"].endswith(" version"):
            counts[result["name"]] = counts.get(result["name"], 0) + 1
    return counts
