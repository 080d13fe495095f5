"""The virtual environment, and the packages of npm that the tests use. All from lock files with hashes."""

import hashlib
import os
import sys
from pathlib import Path

from setup.steps import ROOT, TOOLS, Step

_REQUIREMENTS = ROOT / "requirements"


class Uv(Step):
    """uv, the installer, in an environment of its own."""

    name = "uv"
    folder = TOOLS / "uv"
    program = folder / "bin" / "uv"
    _lock = _REQUIREMENTS / "uv.lock"

    def is_done(self) -> bool:
        return _stamp_says(self.folder, _digest(self._lock)) and self.program.exists()

    def describe(self) -> str:
        return "installing uv"

    def run(self) -> None:
        self.command(sys.executable, "-I", "-m", "venv", "--clear", self.folder)
        pip = (self.folder / "bin" / "python", "-I", "-m", "pip")
        self.command(
            *pip, "install", "--disable-pip-version-check", "--require-hashes", "--requirement", self._lock
        )
        _write_stamp(self.folder, _digest(self._lock))

    def pip_install(self, step: Step, *arguments: str | Path) -> None:
        """`uv pip ...`, reaching the index the way that pip is configured on this machine."""
        step.command(self.program, "pip", *arguments, env=self._environment(step))

    def _environment(self, step: Step) -> dict[str, str]:
        python = self.folder / "bin" / "python"
        listing = step.command(python, "-m", "pip", "config", "list", log=False)
        configured: dict[str, str] = {}
        for line in listing.splitlines():
            key, found, value = line.partition("=")
            if found:
                configured[key.rpartition(".")[2].strip()] = value.strip().strip("'")
        environment: dict[str, str] = {}
        for setting, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
            if setting in configured and variable not in os.environ:
                environment[variable] = configured[setting]
        if "extra-index-url" in configured and "UV_INDEX" not in os.environ:
            environment["UV_INDEX"] = " ".join(configured["extra-index-url"].split("\\n"))
        return {**environment, "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}


class PythonPackages(Step):
    """`.venv` with what is locked, and this project itself in place."""

    name = "python"
    folder = ROOT / ".venv"

    def __init__(self, uv: Uv, *, with_tests: bool) -> None:
        super().__init__(after=[uv])
        self._uv = uv
        self._with_tests = with_tests

    def is_done(self) -> bool:
        if not (self.folder / "bin" / "forkyard").exists():
            return False
        wanted = ["dev"] if self._with_tests else ["dev", "demo"]
        return any(_stamp_says(self.folder, self._state(kind)) for kind in wanted)

    def describe(self) -> str:
        return "installing Python packages into .venv"

    def run(self) -> None:
        # The tests' packages stay once they were installed, or demo and test would undo each other.
        had_tests = any(line.startswith("dev ") for line in _read_stamp(self.folder).splitlines())
        kind = "dev" if self._with_tests or had_tests else "demo"
        python = self.folder / "bin" / "python"
        self.command(self._uv.program, "venv", "--quiet", "--clear", "--python", sys.executable, self.folder)
        self._uv.pip_install(
            self,
            "sync",
            "--python",
            python,
            "--require-hashes",
            # Where Python may not write beside its packages, every command would compile them anew: 2 s.
            "--compile-bytecode",
            _REQUIREMENTS / f"{kind}.lock",
        )
        self._uv.pip_install(
            self, "install", "--python", python, "--no-deps", "--no-build-isolation", "--editable", ROOT
        )
        _write_stamp(self.folder, self._state(kind))

    def _state(self, kind: str) -> str:
        # Scripts and the editable install hold this folder's path, so a copy of the tree starts anew.
        parts = (
            _digest(_REQUIREMENTS / f"{kind}.lock"),
            _digest(ROOT / "pyproject.toml"),
            sys.version,
            str(ROOT),
        )
        return f"{kind} {hashlib.sha256(repr(parts).encode()).hexdigest()}"


class JavaScriptPackages(Step):
    """The npm SDK that the end-to-end tests drive, with the node of the virtual environment."""

    name = "javascript"
    _project = ROOT / "tests" / "e2e" / "js"

    def __init__(self, python: PythonPackages) -> None:
        super().__init__(after=[python])
        self._bin = python.folder / "bin"

    def is_done(self) -> bool:
        return _stamp_says(self._project / "node_modules", _digest(self._project / "package-lock.json"))

    def describe(self) -> str:
        return "installing the npm SDK for the tests"

    def run(self) -> None:
        environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "npm_config_cache": str(ROOT / "build/cache/npm"),
        }
        # The npm of the wheel does not know the machine's own configuration.
        if "npm_config_globalconfig" not in os.environ and Path("/etc/npmrc").exists():
            environment["npm_config_globalconfig"] = "/etc/npmrc"
        command = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        self.command(self._bin / command[0], *command[1:], cwd=self._project, env=environment)
        _write_stamp(self._project / "node_modules", _digest(self._project / "package-lock.json"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_stamp(folder: Path) -> str:
    try:
        return (folder / ".forkyard").read_text()
    except OSError:
        return ""


def _stamp_says(folder: Path, state: str) -> bool:
    return _read_stamp(folder) == state + "\n"


def _write_stamp(folder: Path, state: str) -> None:
    (folder / ".forkyard").write_text(state + "\n")
