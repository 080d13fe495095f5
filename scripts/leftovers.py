"""What of Forkyard is on this machine: to compare before and after, so that a test run that leaves something fails.

Run by itself it prints what there is.
"""

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {"keeper", "runsc", "edge", "envd", "postgres"}
"""Names of the programs that tests start (a sandbox process is the keeper's own binary)."""


@dataclass(frozen=True)
class Leftovers:
    """Sets of names; a process is `(pid, start time, program)`, so that a pid used again is another one."""

    processes: frozenset[tuple[int, str, str]]
    namespaces: frozenset[str]
    tables: frozenset[str]
    mounts: frozenset[str]
    links: frozenset[str]

    def since(self, before: "Leftovers") -> "Leftovers":
        """What is here and was not there."""
        return Leftovers(
            self.processes - before.processes,
            self.namespaces - before.namespaces,
            self.tables - before.tables,
            self.mounts - before.mounts,
            self.links - before.links,
        )

    def lines(self) -> list[str]:
        """One sentence each."""
        lines = [f"process {pid} ({program})" for pid, _, program in sorted(self.processes)]
        lines += [f"network namespace {name}" for name in sorted(self.namespaces)]
        lines += [f"nftables table {name}" for name in sorted(self.tables)]
        lines += [f"mount {name}" for name in sorted(self.mounts)]
        lines += [f"network link {name}" for name in sorted(self.links)]
        return lines


def look() -> Leftovers:
    """What is there now."""
    return Leftovers(
        processes=frozenset(_processes()),
        namespaces=frozenset(_names(Path("/run/netns"))),
        tables=frozenset(_tables()),
        mounts=frozenset(_mounts()),
        links=frozenset(_names(Path("/sys/class/net"))),
    )


def _processes() -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            program = os.path.basename(os.readlink(folder / "exe")).removesuffix(" (deleted)")
            if program in PROGRAMS:
                start = (folder / "stat").read_text().rpartition(")")[2].split()[19]
                found.append((int(folder.name), start, program))
    return found


def _tables() -> list[str]:
    result = subprocess.run(["nft", "--json", "list", "tables"], capture_output=True, text=True, check=False)
    if result.returncode:
        return []
    entries = [entry["table"] for entry in json.loads(result.stdout)["nftables"] if "table" in entry]
    return [f"{entry['family']} {entry['name']}" for entry in entries]


def _mounts() -> list[str]:
    with Path("/proc/self/mountinfo").open() as lines:
        return [line.split()[4] for line in lines]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    print("\n".join(look().lines()))
