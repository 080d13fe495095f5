"""A server, driven with the published `e2b` package: create, run, pause, resume, fork, snapshot; then all of it goes.

Prints what happened with times. Nothing stays: no process, namespace, mount or file.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2b import Sandbox
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FORKYARD = str(Path(sys.executable).with_name("forkyard"))

COUNTER = """
import os, time
n = 0
while True:
    n += 1
    open("/tmp/count", "w").write(f"{os.getpid()} {n}")
    time.sleep(0.02)
"""

console = Console(highlight=False)


@dataclass
class Story:
    """What happened, and how long it took."""

    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def step(self, title: str, work: Callable[[], str]) -> None:
        if console.is_terminal:
            console.print(f"[dim]·[/] {title} ...", end="")
        started = time.perf_counter()
        outcome = work()
        took = time.perf_counter() - started
        self.rows.append((title, outcome, took))
        if console.is_terminal:  # Rich takes carriage returns out of what it prints.
            console.file.write("\r\x1b[2K")
        console.print(f"[green]✓[/] {title} [dim]{took * 1000:.0f} ms[/]  {outcome}", soft_wrap=True)

    def table(self) -> Table:
        table = Table(title="What happened", title_justify="left")
        table.add_column("step")
        table.add_column("outcome")
        table.add_column("ms", justify="right")
        for title, outcome, took in self.rows:
            table.add_row(title, outcome, f"{took * 1000:.0f}")
        return table


def main() -> int:
    """Run the demo; 0 when everything held."""
    data_dir = Path(tempfile.mkdtemp(prefix="forkyard-demo-"))
    port = _free_port()
    try:
        with _server(data_dir, port):
            _point_sdk_at(data_dir, port)
            story = Story()
            _tell(story)
            console.print()
            console.print(story.table())
    finally:
        _clean_up(data_dir)
    return 0


def _tell(story: Story) -> None:
    made: list[Sandbox] = []
    try:
        _create_and_run(story, made)
        _pause_and_resume(story, made[0])
        _fork(story, made)
        _snapshot(story, made)
        story.step("kill all", lambda: f"{sum(s.kill() for s in made)} sandboxes gone")
        made.clear()
    finally:
        for sandbox in made:
            sandbox.kill()


def _create_and_run(story: Story, made: list[Sandbox]) -> None:
    def create() -> str:
        made.append(Sandbox.create("base", timeout=300))
        return made[0].sandbox_id

    story.step("create a sandbox", create)

    def run() -> str:
        lines: list[str] = []
        code = "import platform; [print(i * i, flush=True) for i in range(4)]; print(platform.machine())"
        result = made[0].commands.run(f"python3 -c '{code}'", on_stdout=lines.append)
        _check(result.exit_code == 0, f"exit code {result.exit_code}")
        return "streamed: " + " ".join("".join(lines).split())

    story.step("run Python, output streamed", run)

    def count() -> str:
        made[0].files.write("/home/user/counter.py", COUNTER)
        made[0].commands.run("python3 /home/user/counter.py", background=True, timeout=0)
        pid, n = _wait_count(made[0], above=5)
        return f"pid {pid} counts in memory: {n}"

    story.step("start a process that counts", count)


def _pause_and_resume(story: Story, sandbox: Sandbox) -> None:
    before = _wait_count(sandbox, above=0)

    def pause() -> str:
        sandbox.pause()
        return "memory, processes and files are on disk"

    story.step("pause", pause)

    def resume() -> str:
        sandbox.connect(timeout=300)
        return "the same sandbox id"

    story.step("resume", resume)

    def compare() -> str:
        pid, n = _wait_count(sandbox, above=before[1])
        _check(pid == before[0], f"the counter's pid changed from {before[0]} to {pid}")
        return f"same pid {pid}, went on from {before[1]} to {n}"

    story.step("the counter went on", compare)


def _fork(story: Story, made: list[Sandbox]) -> None:
    children: list[Sandbox] = []

    def fork() -> str:
        for result in made[0].fork(count=4):
            _check(
                isinstance(result, Sandbox) or getattr(result, "sandbox", None) is not None,
                f"a fork failed: {result}",
            )
            children.append(result if isinstance(result, Sandbox) else result.sandbox)
        made.extend(children)
        return f"{len(children)} children of the running machine"

    story.step("fork it into 4", fork)

    def diverge() -> str:
        hosts = set()
        for index, child in enumerate(children):
            child.files.write("/home/user/who", f"child {index}")
            _wait_count(child, above=0)
            hosts.add(child.commands.run("hostname").stdout.strip())
        whos = [child.files.read("/home/user/who") for child in children]
        _check(whos == [f"child {i}" for i in range(4)], f"children share a disk: {whos}")
        _check(len(hosts) == 4, "children share a host name")
        _check(not made[0].files.exists("/home/user/who"), "a child wrote into its parent")
        counts = [_wait_count(child, above=0)[1] for child in children]
        return f"each counts on by itself ({', '.join(map(str, counts))}) and has files of its own"

    story.step("let them diverge", diverge)


def _snapshot(story: Story, made: list[Sandbox]) -> None:
    taken: list[str] = []

    def snapshot() -> str:
        made[0].files.write("/home/user/state", "as it was")
        taken.append(made[0].create_snapshot().snapshot_id)
        made[0].files.write("/home/user/state", "changed since")
        return taken[0]

    story.step("snapshot the running sandbox", snapshot)

    def start() -> str:
        made.append(Sandbox.create(taken[0], timeout=300))
        state = made[-1].files.read("/home/user/state")
        _check(state == "as it was", f"the new sandbox has {state!r}")
        pid, n = _wait_count(made[-1], above=0)
        return f"file: {state!r}; the counter (pid {pid}) is at {n}"

    story.step("start a new one from the snapshot", start)

    def delete() -> str:
        _check(Sandbox.delete_snapshot(taken[0]), "the snapshot was gone already")
        return "what was started from it runs on"

    story.step("delete the snapshot", delete)


def _wait_count(sandbox: Sandbox, *, above: int) -> tuple[int, int]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if sandbox.files.exists("/tmp/count"):
            words = sandbox.files.read("/tmp/count").split()
            if len(words) == 2 and int(words[1]) > above:
                return int(words[0]), int(words[1])
        time.sleep(0.01)
    raise SystemExit("the counter does not count")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise SystemExit(f"the demo failed: {message}")


@contextmanager
def _server(data_dir: Path, port: int) -> Iterator[None]:
    console.print(f"[dim]· starting a server on port {port} ...[/]")
    started = time.perf_counter()
    log = data_dir / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [FORKYARD, "serve", "--data-dir", str(data_dir), "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not _answers(f"http://localhost:{port}/ready"):
            if process.poll() is not None or time.perf_counter() - started > 120:
                raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.02)
        console.print(f"[green]✓[/] server ready [dim]{time.perf_counter() - started:.1f} s[/]\n")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def _point_sdk_at(data_dir: Path, port: int) -> None:
    os.environ["E2B_API_KEY"] = (data_dir / "api-key").read_text().strip()
    os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = f"http://localhost:{port}"


def _clean_up(data_dir: Path) -> None:
    started = time.perf_counter()
    done = subprocess.run(
        [FORKYARD, "down", "--data-dir", str(data_dir), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        console.print(f"[red]clean-up failed[/]: {done.stderr.strip()}\nsee {data_dir}")
        raise SystemExit(1)
    shutil.rmtree(data_dir, ignore_errors=True)
    console.print(f"[green]✓[/] cleaned up [dim]{time.perf_counter() - started:.1f} s[/]: nothing stays")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
