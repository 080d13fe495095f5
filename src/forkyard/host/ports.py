"""Who listens on a TCP port."""

import os
from pathlib import Path

_LISTENING = "0A"


def port_holder(port: int) -> str | None:
    """`process 12 (nginx)`, or None if nobody listens there or it cannot be seen who. Blocks; reads all of /proc."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _has_one_of(entry, sockets):
            try:
                name = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                continue
            return f"process {entry} ({name})"
    return None


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _has_one_of(pid: str, sockets: set[str]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(os.readlink(entry.path) in sockets for entry in entries)
    except OSError:
        return False  # it ended, or is not ours to look at
