"""Finding control groups and reading them, on files that look like them."""

from pathlib import Path

import pytest

from forkyard.host.cgroups import Hierarchies, MachineGroups, Usage
from forkyard.host.errors import HostError, RequirementMissing
from forkyard.host.memory import _meminfo  # pyright: ignore[reportPrivateUsage]

VERSION_1 = """\
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def test_version_1_with_joined_and_named_hierarchies() -> None:
    found = Hierarchies.detect(VERSION_1)
    assert found.version == 1
    assert found.by_controller["cpuacct"] == found.by_controller["cpu"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert {path.name for path in found.roots} == {"cpu,cpuacct", "memory", "systemd", "unified"}


def test_version_2() -> None:
    found = Hierarchies.detect("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
    assert found.version == 2
    assert found.roots == [Path("/sys/fs/cgroup")]


def test_none_says_what_to_do() -> None:
    with pytest.raises(RequirementMissing, match="mount them with"):
        Hierarchies.detect("proc /proc proc rw 0 0\n")


def test_usage_of_version_2_is_read_for_all_machines(tmp_path: Path) -> None:
    where = Hierarchies(2, dict.fromkeys(("cpu", "memory", "pids"), tmp_path))
    for name, number in (("one", 1), ("two", 2)):
        group = tmp_path / "forkyard-abc123" / name
        group.mkdir(parents=True)
        (group / "cpu.stat").write_text(f"usage_usec {number}00\nuser_usec 7\n")
        (group / "memory.current").write_text(f"{number}000\n")
        (group / "memory.stat").write_text(
            f"anon 5\nfile 9{number}0\nshmem 9\ninactive_file {number}\nactive_file 7\n"
        )
        (group / "pids.current").write_text("3\n")
    (tmp_path / "forkyard-abc123" / "gone").mkdir()
    groups = MachineGroups("abc123", where)
    assert groups.names() == ["gone", "one", "two"]
    assert groups.usage() == {"one": Usage(100_000, 1000, 8, 3), "two": Usage(200_000, 2000, 9, 3)}
    assert MachineGroups("other1", where).usage() == {}


def test_usage_of_version_1(tmp_path: Path) -> None:
    where = Hierarchies(1, {name: tmp_path / name for name in ("cpuacct", "memory", "pids")})
    for name, files in {
        "cpuacct": {"cpuacct.usage": "5000"},
        "memory": {
            "memory.usage_in_bytes": "4096",
            "memory.stat": "inactive_file 1\ntotal_cache 4096\ntotal_inactive_file 2000\ntotal_active_file 48\n",
        },
        "pids": {"pids.current": "4"},
    }.items():
        group = tmp_path / name / "forkyard-abc123" / "m"
        group.mkdir(parents=True)
        for file, content in files.items():
            (group / file).write_text(content)
    assert MachineGroups("abc123", where).usage() == {"m": Usage(5000, 4096, 2048, 4)}


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a" * 129, "a\n"])
def test_names_cannot_lead_elsewhere(name: str) -> None:
    groups = MachineGroups("abc123", Hierarchies(2, {"memory": Path("/nowhere")}))
    with pytest.raises(HostError):
        groups.path(name)


def test_memory_of_the_machine() -> None:
    found = _meminfo(
        "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:    40 kB\nHugePages_Total:       0\n"
    )
    assert (found.total, found.available) == (102400, 40960)
