"""Host settings that were measured to help: each is explained, applied on request only, and undone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from forkyard.host.disk import write_atomically
from forkyard.host.errors import HostError

STATE = Path("/run/forkyard/settings.json")
"""The values before. Under /run, because a restart of the machine undoes all of it anyway."""


@dataclass(frozen=True, slots=True)
class HostSetting:
    """A file that holds one value."""

    name: str
    path: Path
    wanted: str
    why: str

    def is_available(self) -> bool:
        return self.path.exists()

    def value(self) -> str:
        return self.path.read_text().strip()

    def is_set(self) -> bool:
        return self.value() == self.wanted


SETTINGS = (
    HostSetting(
        "rcu_expedited",
        Path("/sys/kernel/rcu_expedited"),
        "1",
        "sandboxes are created 1.5 to 2 times as fast and restored 10 to 25 % faster, because starting their processes "
        "waits for a grace period of the kernel; it costs some interrupts on idle cores",
    ),
)


def apply_settings(settings: tuple[HostSetting, ...] = SETTINGS, state: Path = STATE) -> list[str]:
    """Set what is not set yet; answers what was changed. Raises HostError. Blocks."""
    before = _load(state)
    changed: list[str] = []
    for setting in settings:
        if not setting.is_available() or setting.is_set():
            continue
        old = setting.value()
        # Written down first: a value changed and not remembered could not be undone.
        before.setdefault(setting.name, old)
        state.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(state, json.dumps(before).encode(), durable=False)
        _write(setting, setting.wanted)
        changed.append(f"{setting.path}: {old} -> {setting.wanted} ({setting.why})")
    return changed


def undo_settings(settings: tuple[HostSetting, ...] = SETTINGS, state: Path = STATE) -> list[str]:
    """Give every setting the value it had before `apply_settings`; answers what was changed. Raises HostError."""
    before = _load(state)
    changed: list[str] = []
    for setting in settings:
        old = before.get(setting.name)
        if old is None or not setting.is_available() or setting.value() == old:
            continue
        changed.append(f"{setting.path}: {setting.value()} -> {old}")
        _write(setting, old)
    state.unlink(missing_ok=True)
    return changed


def _write(setting: HostSetting, value: str) -> None:
    try:
        setting.path.write_text(value)
    except OSError as error:
        raise HostError(
            f"{setting.path} cannot be set to {value}: {error.strerror}; is this the host, and root?"
        ) from error


def _load(state: Path) -> dict[str, str]:
    try:
        value: Any = json.loads(state.read_bytes())
        return {str(key): str(old) for key, old in cast(dict[Any, Any], value).items()}
    except (OSError, ValueError, AttributeError):
        return {}
