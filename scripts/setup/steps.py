"""Steps with what they wait for, run beside each other, with progress on the terminal and their output in log files."""

import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TOOLS = BUILD / "tools"

_STILL_SECONDS = 10
"""A step that takes longer says so this often."""


class StepError(Exception):
    """A step failed; the text says which, why, and where the log is."""


class RunningProcesses:
    """The programs that run now, each leader of a session, so that all of it can be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._closed:
                os.killpg(process.pid, signal.SIGTERM)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end_all(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._processes:
                # Not yet waited for by its thread, so the number is still its own.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)


class Step(ABC):
    """One thing to install. `run` may be cut off at any point and is then run again."""

    name: str
    """Also the name of its log file."""

    def __init__(self, after: Sequence["Step"] = ()) -> None:
        self.after = tuple(after)
        self._log: Path | None = None
        self._running = RunningProcesses()

    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is nothing to do; called once the steps before it are done. Takes milliseconds."""

    @abstractmethod
    def describe(self) -> str:
        """What `run` is going to do, in a few words."""

    @abstractmethod
    def run(self) -> None:
        """Do it; raises `StepError`."""

    def command(
        self, *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, log: bool = True
    ) -> str:
        """Run a program with its output in the step's log; returns that output. `log=False`: only a question."""
        assert self._log is not None
        text = " ".join(str(part) for part in command)
        with self._log.open("a+b") as file:
            start = file.seek(0, os.SEEK_END)
            if log:
                file.write(f"$ {text}\n".encode())
                file.flush()
                start = file.tell()
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                code = process.wait()
            finally:
                self._running.discard(process)
            file.seek(start)
            output = file.read().decode(errors="replace")
        if code:
            tail = "\n".join("    " + line for line in output.strip().splitlines()[-20:])
            shown = text if len(text) < 200 else text[:200] + "..."
            raise StepError(
                f"{self.name} failed: `{shown}` ended with code {code}\n{tail}\nThe whole log: {self._log}"
            )
        return output

    def last_line(self) -> str:
        """What its programs said last, for the terminal."""
        if self._log is None:
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "")
        return "".join(char for char in line if char.isprintable())[:100]

    def begin(self, log: Path, running: RunningProcesses) -> None:
        """Start a log file anew; programs are kept in `running` while they run."""
        self._log, self._running = log, running
        log.write_bytes(b"")


class _Board:
    """What the terminal shows."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            print(f"[{time.monotonic() - self._start:5.1f} s] {text}", file=sys.stderr, flush=True)


def run_steps(steps: Sequence[Step], log_folder: Path) -> None:
    """Run what is not done, each step after those it waits for. The first failure ends the others and is raised."""
    log_folder.mkdir(parents=True, exist_ok=True)
    board = _Board()
    done = {step: threading.Event() for step in steps}
    failures: list[StepError] = []
    began: dict[Step, float] = {}
    running = RunningProcesses()

    def work(step: Step) -> None:
        for earlier in step.after:
            done[earlier].wait()
        try:
            if failures or step.is_done():
                return
            board.say(f"{step.name}: {step.describe()}")
            began[step] = time.monotonic()
            step.begin(log_folder / f"{step.name}.log", running)
            step.run()
            if not step.is_done():
                raise StepError(
                    f"{step.name} ran without an error and is not done; see {log_folder / step.name}.log"
                )
            board.say(f"{step.name}: done in {time.monotonic() - began.pop(step):.1f} s")
        except StepError as error:
            failures.append(error)
        except OSError as error:
            failures.append(StepError(f"{step.name} failed: {error}"))
        finally:
            began.pop(step, None)
            done[step].set()
            if failures:
                running.end_all()

    threads = [threading.Thread(target=work, args=(step,), name=step.name, daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _wait(threads, began, board)
    except KeyboardInterrupt:
        failures.append(StepError("interrupted"))
        running.end_all()
        raise
    if failures:
        raise failures[0]


def _wait(threads: Sequence[threading.Thread], began: Mapping[Step, float], board: _Board) -> None:
    said = time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(timeout=0.2)
            now = time.monotonic()
            running = {step: now - since for step, since in list(began.items())}
            if now - said > _STILL_SECONDS and any(seconds > _STILL_SECONDS for seconds in running.values()):
                said = now
                for step, seconds in running.items():
                    board.say(f"{step.name}: {seconds:.0f} s: {step.last_line()}")
