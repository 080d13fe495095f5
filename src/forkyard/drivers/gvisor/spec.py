"""The OCI spec of a machine. It depends on the shape alone, because a restore needs the very spec of the checkpoint;
only the network namespace, the cgroup and the source of the volume slot differ.
"""

from __future__ import annotations

from typing import Any

from forkyard.drivers.gvisor.config import NODE
from forkyard.sandboxes.driver import Shape

ENVD_DIR = "/usr/lib/forkyard"
VOLUMES_DIR = "/run/forkyard/volumes"

_CPU_PERIOD_US = 100_000
_MAX_PIDS = 8192
_MAX_FILES = 1 << 20

# Root inside is root of a kernel of its own: it may do there what it likes, as on any virtual machine.
_CAPABILITIES = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_KILL",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_SYS_NICE",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
]


def memory_limit(shape: Shape) -> int:
    """Bytes of the machine's memory as it sees it."""
    return shape.memory_mb << 20


def cgroup_memory_limit(shape: Shape) -> int:
    """Bytes at which the host kills the whole machine: head-room for the sentry, page cache, and for the time
    that envd takes to see and kill a process that takes 2 GB a second."""
    return memory_limit(shape) + (512 << 20) + memory_limit(shape) // 8


def memory_marks(shape: Shape) -> list[int]:
    """Usage in bytes at which envd is told to look."""
    return [memory_limit(shape) * percent // 100 for percent in (70, 85, 95)]


def oci_spec(shape: Shape, *, netns: str, cgroup: str, volumes: str) -> dict[str, Any]:
    """The spec; `volumes` is the host's directory (as the keeper sees it) behind the volume slot."""
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
    return {
        "ociVersion": "1.1.0",
        "hostname": "sandbox",
        "process": {
            "args": [f"{ENVD_DIR}/envd", "--port", "49983"],
            "cwd": "/",
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "user": {"uid": 0, "gid": 0},
            "capabilities": capabilities,
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": _MAX_FILES, "hard": _MAX_FILES}],
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            {
                "destination": ENVD_DIR,
                "type": "bind",
                "source": f"{NODE}/bin/envd/{shape.envd}",
                "options": ["bind", "ro"],
            },
            {"destination": VOLUMES_DIR, "type": "bind", "source": volumes, "options": ["rbind", "rslave"]},
        ],
        "annotations": {
            "dev.gvisor.spec.rootfs.source": f"{NODE}/images/{shape.image}.erofs",
            "dev.gvisor.spec.rootfs.type": "erofs",
            "dev.gvisor.spec.rootfs.overlay": f"dir={NODE}/disks",
            "dev.gvisor.spec.rootfs.options": f"size={shape.disk_mb}m",
        },
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": "network", "path": netns}, {"type": "pid"}, {"type": "mount"}],
            "resources": {
                "memory": {"limit": memory_limit(shape)},
                "cpu": {
                    "shares": 256 * shape.vcpus,
                    "quota": shape.vcpus * _CPU_PERIOD_US,
                    "period": _CPU_PERIOD_US,
                },
                "pids": {"limit": _MAX_PIDS},
            },
        },
    }
