"""The npm SDK: its own test file, run with node against the same server."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.e2e.server import ServerProcess

JS = Path(__file__).parent / "js"


def test_javascript_sdk(server: ServerProcess) -> None:
    node = shutil.which("node") or str(Path(os.sys.executable).with_name("node"))
    assert (JS / "node_modules" / "e2b").exists(), "the npm SDK is not installed: run `make dev`"
    done = subprocess.run(
        [node, "--test", "--test-timeout=100000", "smoke.test.mjs"],
        cwd=JS,
        env={**os.environ, **server.sdk_env()},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
