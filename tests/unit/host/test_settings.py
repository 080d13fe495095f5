"""Host settings, on files that look like them."""

from pathlib import Path

import pytest

from forkyard.host.errors import HostError
from forkyard.host.settings import HostSetting, apply_settings, undo_settings


@pytest.fixture
def settings(tmp_path: Path) -> tuple[HostSetting, ...]:
    (tmp_path / "off").write_text("0\n")
    (tmp_path / "on").write_text("1\n")
    return tuple(HostSetting(name, tmp_path / name, "1", "it helps") for name in ("off", "on", "missing"))


def test_only_what_is_not_set_is_changed_and_only_that_is_undone(
    tmp_path: Path, settings: tuple[HostSetting, ...]
) -> None:
    state = tmp_path / "run" / "state"
    changed = apply_settings(settings, state)
    assert changed == [f"{tmp_path / 'off'}: 0 -> 1 (it helps)"]
    assert apply_settings(settings, state) == []
    assert undo_settings(settings, state) == [f"{tmp_path / 'off'}: 1 -> 0"]
    assert (tmp_path / "on").read_text() == "1\n"
    assert undo_settings(settings, state) == []


def test_applying_twice_keeps_the_first_value(tmp_path: Path, settings: tuple[HostSetting, ...]) -> None:
    state = tmp_path / "state"
    apply_settings(settings, state)
    (tmp_path / "off").write_text("7")
    apply_settings(settings, state)
    undo_settings(settings, state)
    assert (tmp_path / "off").read_text() == "0"


def test_a_setting_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()

    class Stubborn(HostSetting):
        def value(self) -> str:
            return "0"

    with pytest.raises(HostError, match="cannot be set to 1"):
        apply_settings((Stubborn("dir", tmp_path / "dir", "1", ""),), tmp_path / "state")


def test_damaged_state_undoes_nothing(tmp_path: Path, settings: tuple[HostSetting, ...]) -> None:
    (tmp_path / "state").write_text("[1")
    assert undo_settings(settings, tmp_path / "state") == []
