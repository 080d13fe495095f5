"""How much disk a machine's written files take on the host: gVisor keeps them in one unlinked file."""

from __future__ import annotations

import os

from forkyard.drivers.gvisor.config import NODE

_DISKS = f"{NODE}/disks/"


class DiskUse:
    """Finds the file among the sandbox process's descriptors once, then one `stat` a sample."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], str] = {}

    def bytes_of(self, pid: int, start_time: int) -> int:
        """0 when it cannot be told."""
        key = (pid, start_time)
        path = self._found.get(key)
        if path is None:
            path = self._find(pid)
            if path is None:
                return 0
            self._found[key] = path
        try:
            return os.stat(path).st_blocks * 512
        except OSError:
            del self._found[key]
            return 0

    def forget_all_but(self, alive: set[tuple[int, int]]) -> None:
        self._found = {key: path for key, path in self._found.items() if key in alive}

    def _find(self, pid: int) -> str | None:
        directory = f"/proc/{pid}/fd"
        try:
            names = os.listdir(directory)
        except OSError:
            return None
        for name in names:
            path = f"{directory}/{name}"
            try:
                if os.readlink(path).startswith(_DISKS):
                    return path
            except OSError:
                continue
        return None
