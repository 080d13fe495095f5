"""One client: a sandbox at a time, random operations on it, and a model of what must be in it."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.faults.witness import Witness, sdk

FILES = 6
MOST_BYTES = 64 << 10
MOST_FAILURES = 10


@dataclass
class Tally:
    """What all actors did; used by many threads."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self, operation: str, seconds: float) -> None:
        with self._lock:
            self.times[operation].append(seconds)

    def failed(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)

    def broken(self) -> bool:
        """Whether going on would only repeat itself."""
        return len(self.failures) >= MOST_FAILURES


class Mismatch(Exception):
    """A sandbox is not as the model says."""


class Actor(threading.Thread):
    """Runs until `stop` is set; leaves nothing."""

    def __init__(
        self, server: ServerProcess, index: int, seed: int, stop: threading.Event, tally: Tally
    ) -> None:
        super().__init__(name=f"actor-{index}", daemon=True)
        self._server = server
        self._random = random.Random(f"{seed}/{index}")
        self._stop_wanted = stop
        self._tally = tally
        self._witness: Witness | None = None
        self._files: dict[str, bytes] = {}
        self._paused = False

    def run(self) -> None:
        while not self._stop_wanted.is_set() and not self._tally.broken():
            operation = self._choose()
            began = time.monotonic()
            try:
                operation()
            except Exception as error:
                which = self._witness.id if self._witness else "none"
                name = operation.__name__.strip("_")
                self._tally.failed(f"{self.name} {name} of {which}: {type(error).__name__}: {error}"[:600])
                self._abandon()
            else:
                self._tally.done(operation.__name__.strip("_"), time.monotonic() - began)
        self._abandon()

    def _choose(self) -> Callable[[], None]:
        if self._witness is None:
            return self._create
        if self._paused:
            return self._random.choices((self._resume, self._kill), (9, 1))[0]
        return self._random.choices(
            (
                self._run,
                self._write,
                self._read,
                self._check,
                self._pause,
                self._fork,
                self._snapshot,
                self._kill,
            ),
            (6, 6, 6, 2, 3, 1, 1, 1),
        )[0]

    # -- operations ----------------------------------------------------------------------------------

    def _create(self) -> None:
        self._files = {}
        self._paused = False
        self._witness = Witness.create(self._server)

    def _run(self) -> None:
        a, b = self._random.randrange(1000), self._random.randrange(1000)
        result = self._sandbox.commands.run(f"echo $(({a} * {b})); echo err >&2")
        _same("a command's output", (result.stdout, result.stderr), (f"{a * b}\n", "err\n"))

    def _write(self) -> None:
        path = f"/home/user/f{self._random.randrange(FILES)}"
        data = self._random.randbytes(self._random.randrange(MOST_BYTES))
        self._sandbox.files.write(path, data)
        self._files[path] = data

    def _read(self) -> None:
        self._compare(self._sandbox, self._random.choice(sorted(self._files)) if self._files else None)

    def _check(self) -> None:
        self._known.check()
        self._compare(self._sandbox)

    def _pause(self) -> None:
        self._known.note()
        self._sandbox.pause()
        self._paused = True

    def _resume(self) -> None:
        self._known.check()
        self._paused = False
        self._compare(self._sandbox)

    def _fork(self) -> None:
        self._known.note()
        results = self._sandbox.fork(count=self._random.randint(1, 3), timeout=600)
        children = [child for child in results if isinstance(child, Sandbox)]
        try:
            _same("children", [r for r in results if not isinstance(r, Sandbox)], [])
            for child in children:
                self._known.check(child.sandbox_id)
                self._compare(child)
                child.files.write("/home/user/f0", child.sandbox_id)
            self._compare(self._sandbox)
        finally:
            for child in children:
                child.kill()

    def _snapshot(self) -> None:
        self._known.note()
        snapshot = self._sandbox.create_snapshot()
        copy: Sandbox | None = None
        try:
            self._write()
            copy = Sandbox.create(snapshot.snapshot_id, timeout=600, **sdk(self._server))
            self._known.check(copy.sandbox_id)
        finally:
            if copy is not None:
                copy.kill()
            Sandbox.delete_snapshot(snapshot.snapshot_id, **sdk(self._server))

    def _kill(self) -> None:
        known, self._witness = self._known, None
        known.kill()

    # ------------------------------------------------------------------------------------------------

    @property
    def _known(self) -> Witness:
        assert self._witness is not None
        return self._witness

    @property
    def _sandbox(self) -> Sandbox:
        return self._known.sandbox

    def _compare(self, sandbox: Sandbox, only: str | None = None) -> None:
        for path, data in self._files.items():
            if only in (None, path):
                _same(path, bytes(sandbox.files.read(path, format="bytes")), data)

    def _abandon(self) -> None:
        known, self._witness = self._witness, None
        if known is None:
            return
        try:
            known.kill()
        except Exception as error:
            self._tally.failed(f"{self.name} kill of {known.id}: {type(error).__name__}: {error}"[:600])


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Mismatch(f"{what}: {str(found)[:100]} instead of {str(wanted)[:100]}")
