"""An upgrade: with another envd and another runtime beside the old ones, what was paused before still resumes."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from e2b import Sandbox

from tests.e2e.inside import counter_went_on, only_child, output, start_counter
from tests.e2e.server import FORKYARD, ServerProcess
from tests.e2e.waiting import until

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


@pytest.mark.timeout(300)  # three starts of a server, and doctor again and again
def test_what_was_made_before_the_upgrade_goes_on_after_it(
    tmp_path: Path, other_binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ServerProcess(tmp_path / "data")
    after = ServerProcess(tmp_path / "data", port=before.port, env={"FORKYARD_BIN_DIR": str(other_binaries)})
    before.start()
    try:
        for name, value in before.sdk_env().items():
            monkeypatch.setenv(name, value)
        old = Sandbox.create(timeout=600)
        source = Sandbox.create(timeout=600)
        source.files.write("/home/user/old", "kept")
        count = start_counter(old)
        snapshot_id = source.create_snapshot(name="before-upgrade").snapshot_id
        source.kill()
        running = Sandbox.create(timeout=600)
        old.pause()
        assert before.stop() == 0
        after.start()

        assert output(running, "echo survived") == "survived"
        old.connect(timeout=600)
        check_second_life(old, counter_went_on(old, count))
        restored = Sandbox.create(snapshot_id, timeout=600)
        assert output(restored, "cat old") == "kept"
        check_second_life(restored, start_counter(restored))
        assert output(Sandbox.create("base"), "echo new") == "new"

        old_ones = versions_in(BINARIES)
        new_ones = versions_in(other_binaries)

        def told(wanted: str) -> dict[tuple[str, str], str] | None:
            found = doctor(after)
            return found if all(found.get(old, "").endswith(wanted) for old in old_ones) else None

        # `running`, `old` and `restored` run on them, and the named snapshot needs them.
        wanted = ": needed by 1 snapshot, 3 running machines"
        found = until(lambda: told(wanted), f"doctor says {wanted!r} of the old ones", interval_s=0.5)
        assert all(": needed by new sandboxes, " in found[new] for new in new_ones), found
        assert len(found) == 5, found  # and the image
        for sandbox in (running, old, restored):
            sandbox.kill()
        Sandbox.delete_snapshot(snapshot_id)
        until(
            lambda: told(": needed by nothing"), "doctor says that nothing needs the old ones", interval_s=0.5
        )
    finally:
        after.__exit__(None, None, None)


def check_second_life(sandbox: Sandbox, count: tuple[int, int]) -> None:
    """It is paused, resumed and forked with the old programs."""
    sandbox.pause()
    sandbox.connect(timeout=600)
    count = counter_went_on(sandbox, count)
    child = only_child(sandbox)
    counter_went_on(child, count)
    child.kill()
    sandbox.pause(keep_memory=False)
    sandbox.connect(timeout=600)
    assert output(sandbox, "echo rebooted; pgrep -f '[c]ounter.py' || true") == "rebooted"


def versions_in(binaries: Path) -> list[tuple[str, str]]:
    return [("envd version", hash_of(binaries / "envd")), ("runtime version", hash_of(binaries / "keeper"))]


def hash_of(path: Path) -> str:
    """As doctor shows it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def doctor(server: ServerProcess) -> dict[tuple[str, str], str]:
    """What doctor says of each version that lies there, by its kind and hash."""
    done = subprocess.run(
        [FORKYARD, "doctor", "--data-dir", str(server.data_dir), "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
        env=server.env,
    )
    results = [result for result in json.loads(done.stdout) if result["name"].endswith(" version")]
    return {(result["name"], result["found"][:12]): result["found"] for result in results}
