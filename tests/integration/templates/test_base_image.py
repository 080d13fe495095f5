"""The built base image holds what sandboxes and the E2B SDKs rely on."""

import hashlib
import json
import os
import re
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[3] / "build" / "images"


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    return json.loads((IMAGES / "base.json").read_text())


@pytest.fixture(scope="module")
def tree(record: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image unpacked, owners and times included."""
    folder = tmp_path_factory.mktemp("base-image") / "tree"
    image = IMAGES / str(record["image"])
    subprocess.run(
        ["fsck.erofs", f"--extract={folder}", "--preserve", image], check=True, capture_output=True
    )
    return folder


def test_file_is_named_by_its_hash(record: dict[str, object]) -> None:
    image = IMAGES / str(record["image"])
    with image.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == record["sha256"]
    assert image.name == f"{digest}.erofs"
    assert image.stat().st_size == record["size"]
    assert stat.S_IMODE(image.stat().st_mode) == 0o444


@pytest.mark.parametrize(
    "program",
    [
        *[
            "bash",
            "cat",
            "realpath",
            "less",
            "nano",
            "vi",
            "ps",
            "ip",
            "tput",
            "sudo",
            "curl",
            "jq",
            "unzip",
            "xz",
        ],
        *["git", "git-upload-pack", "gcc", "make", "node", "npm", "python", "python3", "pip"],
    ],
)
def test_programs(tree: Path, program: str) -> None:
    assert any(
        os.path.lexists(tree / folder / program) for folder in ("usr/bin", "usr/sbin", "etc/alternatives")
    )


def test_user(tree: Path, record: dict[str, object]) -> None:
    assert re.search(
        r"^user:x:1000:1000:[^:]*:/home/user:/bin/bash$", (tree / "etc/passwd").read_text(), re.MULTILINE
    )
    assert (tree / "home/user").stat().st_uid == 1000
    assert stat.S_IMODE(mode_in_image(IMAGES / str(record["image"]), "/usr/bin/sudo")) == 0o4755
    rules = tree / "etc/sudoers.d/forkyard"
    assert "NOPASSWD: ALL" in rules.read_text()
    assert stat.S_IMODE(rules.stat().st_mode) == 0o440
    assert re.search(r"^sudo:x:\d+:user$", (tree / "etc/group").read_text(), re.MULTILINE)


def mode_in_image(image: Path, path: str) -> int:
    """Read from the inode itself, because the tools of erofs-utils show and unpack no set-user-id bit."""
    command = ["dump.erofs", f"--path={path}", image]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number = int(re.search(r"NID: (\d+)", shown)[1])  # type: ignore[index]
    with image.open("rb") as file:
        file.seek(1024 + 40)
        (metadata_block,) = struct.unpack("<I", file.read(4))
        file.seek(metadata_block * 4096 + number * 32)
        _, _, mode = struct.unpack("<HHH", file.read(6))
    return mode


@pytest.mark.parametrize(("path", "mode"), [("code", 0o777), ("usr/local/bin", 0o777), ("tmp", 0o1777)])
def test_open_folders(tree: Path, path: str, mode: int) -> None:
    assert stat.S_IMODE((tree / path).stat().st_mode) == mode


def test_tmp_lies_on_the_disk(tree: Path) -> None:
    """gVisor puts guest memory over an empty /tmp."""
    assert list((tree / "tmp").iterdir())


def test_names_are_left_to_each_sandbox(tree: Path) -> None:
    assert (tree / "etc/machine-id").read_bytes() == b""
    assert (tree / "run/e2b").is_dir()
    assert "localhost" in (tree / "etc/hosts").read_text()


def test_login_shell_keeps_the_path_and_starts_no_process(tree: Path) -> None:
    """`bash -l -c` is what every command of the SDKs runs in."""
    environment = {"PATH": "/opt/mine:/usr/bin:/bin", "HOME": "/home/user", "FOO": "kept"}
    command = [
        shutil.which("chroot") or "chroot",
        "--userspec=1000:1000",
        tree,
        "/bin/bash",
        "-l",
        "-c",
        'echo "$PATH $FOO $BASHPID"; echo $!',
    ]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    path, foo, _ = shown.stdout.split()
    assert (path, foo, shown.stderr) == ("/opt/mine:/usr/bin:/bin", "kept", "")
    for script in ("etc/profile", "home/user/.profile", "root/.profile"):
        assert not re.search(r"\$\(|`|\bmesg\b|\bid\b", (tree / script).read_text()), script


def test_python_finds_its_compiled_files(tree: Path) -> None:
    """A .pyc whose recorded time is not that of its source is compiled again at each import."""
    (library,) = (tree / "usr/lib").glob("python3.[0-9]*")
    sources = [
        library / "os.py",
        library / "json/__init__.py",
        tree / "usr/lib/python3/dist-packages/pip/__main__.py",
    ]
    for source in sources:
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")
        flags, modified = struct.unpack("<4xII", compiled.read_bytes()[:12])
        assert (flags, modified) == (0, int(source.stat().st_mtime)), source


def test_nothing_of_the_build_is_left(tree: Path) -> None:
    leftovers = [
        path
        for folder in ("var/lib/apt/lists", "var/cache/apt/archives", "var/log", "dev", "root")
        for path in (tree / folder).rglob("*")
        if path.is_file() and path.name not in (".profile", ".bashrc")
    ]
    assert leftovers == []
    assert not list((tree / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"))
    assert not (tree / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    assert "nameserver" in (tree / "etc/resolv.conf").read_text()
