"""A server as a process of its own, for tests, benchmarks and the conformance run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

FORKYARD = str(Path(sys.executable).with_name("forkyard"))


class ServerProcess:
    """`forkyard serve` on a data directory and a free port; everything of it is gone at the end."""

    def __init__(
        self,
        data_dir: Path,
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        authority: Path | None = None,
    ) -> None:
        """`authority` is the file of the certificate authority when `env` puts TLS on the port."""
        self.data_dir = data_dir
        self.port = port or free_port()
        self._env = {**os.environ, "FORKYARD_LOG_LEVEL": "info", **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._trust: ssl.SSLContext | None = None
        if authority is not None:
            self._trust = ssl.create_default_context(cafile=str(authority))
            self._trust.check_hostname = False  # asked by address here

    @property
    def url(self) -> str:
        return f"{'http' if self._trust is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def api_key(self) -> str:
        return (self.data_dir / "api-key").read_text().strip()

    @property
    def env(self) -> Mapping[str, str]:
        """What it is started with, for commands that must see the same settings."""
        return self._env

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def sdk_env(self) -> dict[str, str]:
        """What points an E2B SDK here, but for names of sandboxes."""
        return {"E2B_API_KEY": self.api_key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    def printed_env(self) -> dict[str, str]:
        """The same as the server printed them at its last start, taken as a shell would."""
        printed = self.log.read_text().rpartition("Point an E2B SDK at it:\n")[2]
        commands = [line for line in printed.splitlines() if line.startswith(("  export ", "  unset "))]
        script = "\n".join([*commands, "env"])
        path = {"PATH": os.environ["PATH"]}
        done = subprocess.run(["sh", "-c", script], env=path, capture_output=True, text=True, check=True)
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return {name: value for name, value in found.items() if name.startswith("E2B_")}

    def start(self, timeout_s: float = 90.0, *, env: Mapping[str, str] | None = None) -> None:
        """Start, with `env` for this run only, and wait until it is ready. Raises RuntimeError with the log."""
        process = self.launch(env=env)
        deadline = time.monotonic() + timeout_s
        while not self.answers("/ready"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self.tail()}")
            time.sleep(0.02)

    def launch(self, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start, and wait for nothing."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [FORKYARD, "serve", "--data-dir", str(self.data_dir), "--port", str(self.port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**self._env, **(env or {})},
                start_new_session=True,
            )
        return self._process

    @property
    def log(self) -> Path:
        return self.data_dir / "serve.log"

    def tail(self) -> str:
        """The last of its log."""
        return self.log.read_text(errors="replace")[-5000:]

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=2, context=self._trust) as response:
                return bool(response.status < 300)
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9; edge, keeper and sandboxes go on."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        return self._signal(signal.SIGTERM)

    def down(self) -> None:
        """End whatever is left of it."""
        done = subprocess.run(
            [FORKYARD, "down", "--data-dir", str(self.data_dir), "--quiet"],
            check=False,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"forkyard down failed:\n{done.stderr}{done.stdout}")

    def wait(self, timeout_s: float = 60.0) -> int:
        """Until it has ended; the exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        return 0 if self._process is None else self._process.wait(timeout_s)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        self.down()
        if kind is None:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _signal(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
