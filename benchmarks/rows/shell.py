"""The login shell alone: `bash -l -c 'echo hi'` spawned by a program inside a sandbox, without the platform."""

from __future__ import annotations

import json

from benchmarks.measuring import Samples
from benchmarks.sdk import Sdk
from benchmarks.server import Server

SHELL_MARGIN_MS = 8.0

# As the SDK has it started: as `user`, at home, with nothing but PATH in the environment.
_INSIDE = """
import json, subprocess, sys, time
took = []
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    child = subprocess.Popen(["/bin/bash", "-l", "-c", "echo hi"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, close_fds=False)
    said = child.stdout.read(), child.stderr.read()
    child.wait()
    took.append((time.perf_counter() - started) * 1000)
    assert said[0] == b"hi\\n"
print(json.dumps(took))
"""


class Shell:
    """A sandbox of its own, in which shells are timed."""

    def __init__(self, server: Server) -> None:
        self._samples = Samples()
        self._server = server
        self._sandbox_id = server.create()
        self.sandbox = Sdk(server).connected(self._sandbox_id)
        self.sandbox.files.write("/home/user/shell.py", _INSIDE)
        self.sample(3)
        self._samples.values.clear()

    def sample(self, times: int) -> None:
        said = self.sandbox.commands.run(f"python3 /home/user/shell.py {times}").stdout
        for value in json.loads(said):
            self._samples.add(float(value))

    @property
    def p50(self) -> float:
        return self._samples.p50

    @property
    def p95(self) -> float:
        return self._samples.p95

    def close(self) -> None:
        self._server.kill(self._sandbox_id)
