"""What the base image holds, and the hash that names this recipe."""

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

CUSTOMIZE_SCRIPT = Path(__file__).with_name("customize.sh")

PACKAGES = (
    "bash",
    "build-essential",
    "ca-certificates",
    "coreutils",
    "curl",
    "git",
    "hostname",
    "iproute2",
    "jq",
    "less",
    "mount",
    "nano",
    "ncurses-bin",
    "netbase",
    "nodejs",
    "npm",
    "passwd",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "sudo",
    "unzip",
    "vim-tiny",
    "xz-utils",
)

# Documentation and translations are nothing that a program reads. Licences stay.
LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)

USER = "user"
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}

# Modification time of everything that the build itself writes (2025-01-01). Files of packages keep their own:
# Python compares it with the one inside each .pyc, and would compile everything again at each import.
BUILD_EPOCH = 1735689600

# Raised when the code around the recipe changes what comes out.
FORMAT = 3


@dataclass(frozen=True)
class Suite:
    """A distribution release whose packages the image is made of."""

    name: str
    """Code name, such as `bookworm` or `noble`."""
    components: tuple[str, ...]
    """Archive areas that hold every package of the recipe."""


def detect_suite(os_release: Path = Path("/etc/os-release")) -> Suite:
    """The suite of this machine; `ValueError` when it is neither Debian nor Ubuntu."""
    fields: dict[str, str] = {}
    for line in os_release.read_text().splitlines():
        key, found, value = line.partition("=")
        if found:
            fields[key] = value.strip().strip('"')
    name = fields.get("VERSION_CODENAME", "")
    components = {"debian": ("main",), "ubuntu": ("main", "universe")}.get(fields.get("ID", ""))
    if components is None or not name:
        found = fields.get("PRETTY_NAME", "neither")
        raise ValueError(
            f"the base image is built from the packages of Debian or Ubuntu, and this is {found}"
        )
    return Suite(name, components)


def recipe_hash(suite: Suite) -> str:
    """Names what would be built: equal hashes mean that an image already there can be used."""
    parts = (
        f"format {FORMAT}",
        f"suite {suite.name} {platform.machine()}",
        "packages " + " ".join(PACKAGES),
        "left out " + " ".join(LEFT_OUT),
        f"epoch {BUILD_EPOCH}",
        f"env {sorted(ENV.items())}",
        "customize " + hashlib.sha256(CUSTOMIZE_SCRIPT.read_bytes()).hexdigest(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
