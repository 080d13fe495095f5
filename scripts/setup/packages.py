"""Packages of the distribution."""

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from setup.steps import TOOLS, Step, StepError

_APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
_APT_OPTIONS = ("-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-o", "Dpkg::Use-Pty=0")

# What must be found on the path, and the package that has it.
_COMMANDS = {
    "ip": "iproute2",
    "mkfs.erofs": "erofs-utils",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "update-ca-certificates": "ca-certificates",
}

_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/forkyard.conf")


class MachinePackages(Step):
    """The tools of the distribution that Forkyard uses, installed with apt when one is missing."""

    name = "packages"

    def __init__(self, *, with_tests: bool) -> None:
        super().__init__()
        self._with_tests = with_tests

    def is_done(self) -> bool:
        return not self._missing()

    def describe(self) -> str:
        return f"installing {' '.join(self._missing())}"

    def run(self) -> None:
        missing = self._missing()
        if os.geteuid() != 0:
            raise StepError(f"missing packages need root: apt-get install {' '.join(missing)}")
        if shutil.which("apt-get") is None:
            raise StepError(f"no apt-get on this machine; Forkyard needs the like of: {' '.join(missing)}")
        self.command("apt-get", *_APT_OPTIONS, "update", env=_APT_ENV)
        if "postgresql" in missing:
            self._install(["postgresql-common"])
            # The tests start servers of their own; the package must not start one for the whole machine.
            kept = _NO_CLUSTER.exists()
            _NO_CLUSTER.parent.mkdir(exist_ok=True)
            _NO_CLUSTER.write_text("create_main_cluster = false\n")
            try:
                self._install(missing)
            finally:
                if not kept:
                    _NO_CLUSTER.unlink()
        else:
            self._install(missing)

    def _install(self, packages: Sequence[str]) -> None:
        command = ("apt-get", *_APT_OPTIONS, "install", "--yes", "--no-install-recommends", *packages)
        self.command(*command, env=_APT_ENV)

    def _missing(self) -> list[str]:
        missing = {package for command, package in _COMMANDS.items() if shutil.which(command) is None}
        if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
            missing.add("python3-venv")
        if self._with_tests and not _has_postgresql():
            missing.add("postgresql")
        return sorted(missing)


class NginxPackage(Step):
    """nginx, which the benchmarks hold beside the edge. Only unpacked: installed, it would run as a service."""

    name = "nginx"
    _folder = TOOLS / "nginx"

    def is_done(self) -> bool:
        return shutil.which("nginx") is not None or (self._folder / "usr/sbin/nginx").exists()

    def describe(self) -> str:
        return "unpacking nginx for the benchmarks"

    def run(self) -> None:
        scratch = TOOLS / ".nginx"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self.command("apt-get", *_APT_OPTIONS, "update", env=_APT_ENV)
        # The user that apt downloads as cannot write here; root can.
        self.command(
            *("apt-get", *_APT_OPTIONS, "-o", "APT::Sandbox::User=root", "download", "nginx"),
            cwd=scratch,
            env=_APT_ENV,
        )
        (archive,) = scratch.glob("nginx_*.deb")
        self.command("dpkg-deb", "--extract", archive, scratch / "tree")
        shutil.rmtree(self._folder, ignore_errors=True)
        (scratch / "tree").rename(self._folder)
        shutil.rmtree(scratch)


class WrkPackage(Step):
    """wrk, which loads the edge in the benchmarks."""

    name = "wrk"

    def is_done(self) -> bool:
        return shutil.which("wrk") is not None

    def describe(self) -> str:
        return "installing wrk for the benchmarks"

    def run(self) -> None:
        self.command("apt-get", *_APT_OPTIONS, "update", env=_APT_ENV)
        command = ("apt-get", *_APT_OPTIONS, "install", "--yes", "--no-install-recommends", "wrk")
        self.command(*command, env=_APT_ENV)


def _has_postgresql() -> bool:
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb") is not None
