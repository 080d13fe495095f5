"""From packages to one EROFS file named by its hash, and the `base.json` beside it."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forkyard.templates.base_image import recipe
from forkyard.templates.base_image.sources import host_acquire_options, host_sources, without_credentials

Progress = Callable[[str], None]

NAME = "base"
_NEEDED_BYTES = 3 << 30
"""Room for the tree and the image side by side, with some to spare."""
_SCRATCH_PREFIX = ".base-"


class BuildError(Exception):
    """The image could not be built; the text says why and what to do."""


@dataclass(frozen=True)
class BaseImage:
    """The content of `base.json`."""

    name: str
    image: str
    """File name of the image, in the folder of `base.json`."""
    sha256: str
    """Hash of the image file, hex."""
    size: int
    """Bytes of the image file."""
    env: dict[str, str]
    user: str
    workdir: str | None
    """None: the home of whoever runs a command."""
    recipe_hash: str


def find(folder: Path, expected_recipe: str) -> BaseImage | None:
    """The image in `folder` made by that recipe, if it is there and whole in size."""
    try:
        found = BaseImage(**json.loads((folder / f"{NAME}.json").read_text()))
        size = (folder / found.image).stat().st_size
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if found.recipe_hash == expected_recipe and found.size == size else None


def build(folder: Path, progress: Progress, *, force: bool = False) -> BaseImage:
    """The base image in `folder`, built if it is not there; callers at the same time join one build.

    Raises `BuildError`. Killed at any point it leaves at most a scratch folder, which the next build removes.
    """
    try:
        suite = recipe.detect_suite()
    except ValueError as error:
        raise BuildError(str(error)) from error
    expected = recipe.recipe_hash(suite)
    found = find(folder, expected)
    if found and not force:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        found = find(folder, expected)
        if found and not force:
            return found
        _check_host(folder)
        for leftover in folder.glob(_SCRATCH_PREFIX + "*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch:
            return _build_in(Path(scratch), folder, suite, expected, progress)


def _build_in(
    scratch: Path, folder: Path, suite: recipe.Suite, recipe_hash: str, progress: Progress
) -> BaseImage:
    tree = scratch / "tree"
    # Whole seconds are what the file systems keep; one less, so that nothing written now counts as older.
    started = int(time.time()) - 1
    progress(f"installing {len(recipe.PACKAGES)} packages of {suite.name} and what they need")
    _install_packages(tree, scratch, suite)
    progress("writing the image file")
    newest = _set_build_times(tree, started)
    image = scratch / "image.erofs"
    image_uuid = uuid.uuid5(uuid.NAMESPACE_OID, recipe_hash)
    _run(
        ["mkfs.erofs", "--quiet", "-x-1", "-Enoinline_data", f"-U{image_uuid}", str(image), str(tree)],
        # The time of the file system itself, and the latest that any file may have. (`-T` would give it to all files.)
        {"SOURCE_DATE_EPOCH": str(newest)},
    )
    with image.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    image.chmod(0o444)
    built = BaseImage(
        name=NAME,
        image=f"{digest}.erofs",
        sha256=digest,
        size=image.stat().st_size,
        env=dict(recipe.ENV),
        user=recipe.USER,
        workdir=None,
        recipe_hash=recipe_hash,
    )
    image.rename(folder / built.image)
    record = scratch / "record.json"
    record.write_text(json.dumps(asdict(built), indent=2) + "\n")
    with record.open("rb") as file:
        os.fsync(file.fileno())
    record.rename(folder / f"{NAME}.json")
    _fsync_folder(folder)
    progress(f"done: {built.size >> 20} MB, sha256 {digest[:16]}...")
    return built


def _install_packages(tree: Path, scratch: Path, suite: recipe.Suite) -> None:
    sources = host_sources(suite)
    aptopts = scratch / "apt.conf"
    aptopts.write_text(host_acquire_options())
    command = [
        # mmdebstrap mounts /proc and more into the tree: in namespaces of its own nothing outlives it, and
        # with the death signal nothing outlives this program, however either ends.
        *["setpriv", "--pdeathsig", "KILL"],
        *["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap"],
        *[
            "--mode=root",
            "--variant=apt",
            "--format=directory",
            f"--aptopt={aptopts}",
            "--dpkgopt=force-unsafe-io",
        ],
        *[f"--dpkgopt={option}" for option in recipe.LEFT_OUT],
        f"--include={','.join(recipe.PACKAGES)}",
        f"--components={','.join(suite.components)}",
        *[suite.name, str(tree)],
    ]
    if sources:
        sources_file = scratch / "host.sources"
        sources_file.write_text(sources)
        command.append(str(sources_file))
    # Not SOURCE_DATE_EPOCH: with it Python writes .pyc files that it checks by hashing the source at each import.
    _run(command, {"TMPDIR": str(scratch)})
    _run(["sh", str(recipe.CUSTOMIZE_SCRIPT), str(tree)])
    for path in (tree / "etc/apt").glob("sources.list.d/*.sources"):
        path.write_text(without_credentials(path.read_text()))


def _set_build_times(tree: Path, started: int) -> int:
    """Give everything that the build wrote one fixed time, so that two builds of the same packages are equal.

    Returns the newest time that is left in the tree, in seconds.
    """
    newest = recipe.BUILD_EPOCH
    for folder, folders, files in os.walk(tree, topdown=False):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            modified = int(os.lstat(path).st_mtime)
            if modified >= started:
                os.utime(path, (recipe.BUILD_EPOCH, recipe.BUILD_EPOCH), follow_symlinks=False)
            else:
                newest = max(newest, modified)
    os.utime(tree, (recipe.BUILD_EPOCH, recipe.BUILD_EPOCH))
    return newest


def _check_host(folder: Path) -> None:
    if os.geteuid() != 0:
        raise BuildError("building the base image needs root")
    for tool, package in (
        ("mmdebstrap", "mmdebstrap"),
        ("mkfs.erofs", "erofs-utils"),
        ("unshare", "util-linux"),
    ):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is missing: apt-get install {package}")
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise BuildError(f"{folder} has {free >> 20} MB free and the build needs {_NEEDED_BYTES >> 20} MB")


def _run(command: list[str], extra_environment: Mapping[str, str] | None = None) -> None:
    """Run with this program's own output; `BuildError` when it fails."""
    # Settings of the caller's Python and npm must not reach the packages' own scripts.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "NODE_"))
    }
    environment |= {"LC_ALL": "C", **(extra_environment or {})}
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if result.returncode:
        tool = "mmdebstrap" if "mmdebstrap" in command else command[0]
        raise BuildError(f"{tool} ended with code {result.returncode}; its own words stand above")


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    with (folder / ".base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
