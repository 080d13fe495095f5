"""Server and key: from the environment, else the file that `auth` writes, else this machine's server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forkyard.base.errors import ForkyardError

DEFAULT_URL = "http://localhost:3000"
LOCAL_KEY = Path("/var/lib/forkyard/api-key")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class NotLoggedIn(ForkyardError):
    """No API key: set E2B_API_KEY, or run `forkyard auth`."""

    code = "not_logged_in"


@dataclass(frozen=True, slots=True)
class Credentials:
    url: str
    key: str


def credentials_file(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/forkyard/credentials`, mode 0600."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/root")) / ".config")
    return Path(base) / "forkyard" / "credentials"


def find_credentials(environ: Mapping[str, str] = os.environ) -> Credentials:
    """Raises NotLoggedIn. A key that was saved for one server, or lies on this machine, is never sent to another."""
    saved = _saved(credentials_file(environ))
    url = (environ.get("E2B_API_URL") or saved.get("url") or DEFAULT_URL).strip().rstrip("/")
    key = environ.get("E2B_API_KEY", "").strip()
    if not key and url == saved.get("url", "").rstrip("/"):
        key = saved["key"]
    if not key and urlsplit(url).hostname in _THIS_MACHINE:
        key = _local_key(environ)
    if not key:
        raise NotLoggedIn(f"No API key for {url}: {_where_keys_are(url, environ)}")
    if not (key.isascii() and key.isprintable()):
        raise NotLoggedIn("The API key has characters that no key has.")
    return Credentials(url, key)


def save_credentials(credentials: Credentials, environ: Mapping[str, str] = os.environ) -> Path:
    path = credentials_file(environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # It may be what a save that was cut off left.
        json.dump({"url": credentials.url, "key": credentials.key}, file)
    part.replace(path)
    return path


def _saved(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text())
        return {"url": str(value["url"]), "key": str(value["key"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _where_keys_are(url: str, environ: Mapping[str, str]) -> str:
    path = str(_local_key_file(environ))
    if urlsplit(url).hostname not in _THIS_MACHINE:
        path = f"DATA_DIR/api-key on its machine ({LOCAL_KEY} by default)"
    return (
        f"set E2B_API_KEY, or run `forkyard auth`; the first key of a server lies in {path}, for root to read"
    )


def _local_key(environ: Mapping[str, str]) -> str:
    try:
        return _local_key_file(environ).read_text().strip()
    except OSError:
        return ""


def _local_key_file(environ: Mapping[str, str]) -> Path:
    data_dir = environ.get("FORKYARD_DATA_DIR")
    return Path(data_dir) / "api-key" if data_dir else LOCAL_KEY
