"""The steps of scripts/bootstrap.sh: order, skipping, and what a failure says."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from setup.python import PythonPackages, Uv
from setup.steps import Step, StepError, run_steps


class Recorded(Step):
    def __init__(self, name: str, ran: list[str], after: Sequence[Step] = (), script: str = "true") -> None:
        super().__init__(after)
        self.name = name
        self._ran = ran
        self._script = script
        self.done = False

    def is_done(self) -> bool:
        return self.done

    def describe(self) -> str:
        return "doing"

    def run(self) -> None:
        self._ran.append(self.name)
        self.command("sh", "-c", self._script)
        self.done = True


@pytest.fixture
def ran() -> list[str]:
    return []


def test_each_waits_for_those_before_it(tmp_path: Path, ran: list[str]) -> None:
    first = Recorded("first", ran)
    second = Recorded("second", ran, after=[first])
    run_steps([second, first], tmp_path)
    assert ran == ["first", "second"]


def test_what_is_done_is_not_run(tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    step = Recorded("step", ran)
    step.done = True
    run_steps([step], tmp_path)
    assert ran == []
    assert capsys.readouterr().err == ""


def test_a_failure_shows_the_last_lines_and_the_log(tmp_path: Path, ran: list[str]) -> None:
    failing = Recorded("failing", ran, script="seq 1 100; exit 3")
    later = Recorded("later", ran, after=[failing])
    with pytest.raises(StepError) as raised:
        run_steps([failing, later], tmp_path)
    text = str(raised.value)
    assert "failing failed" in text
    assert "code 3" in text
    assert "    100\n" in text
    assert "    80\n" not in text
    assert str(tmp_path / "failing.log") in text
    assert "50\n" in (tmp_path / "failing.log").read_text()
    assert ran == ["failing"]


def test_a_failure_ends_what_runs_beside_it(tmp_path: Path, ran: list[str]) -> None:
    endless = Recorded("endless", ran, script="while :; do read -r _ </dev/zero; done & wait")
    failing = Recorded("failing", ran, script="exit 1")
    with pytest.raises(StepError, match="failing failed"):
        run_steps([endless, failing], tmp_path)
    assert "endless" not in [thread.name for thread in threading.enumerate()]


def test_a_step_that_does_nothing_is_an_error(tmp_path: Path, ran: list[str]) -> None:
    class Lazy(Recorded):
        def run(self) -> None:
            pass

    with pytest.raises(StepError, match="is not done"):
        run_steps([Lazy("lazy", ran)], tmp_path)


def test_a_missing_program_is_named(tmp_path: Path, ran: list[str]) -> None:
    class Missing(Recorded):
        def run(self) -> None:
            self.command("no-such-program")

    with pytest.raises(StepError, match="no-such-program"):
        run_steps([Missing("missing", ran)], tmp_path)


def test_packages_are_compiled_when_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | Path, ...]] = []
    uv = Uv()
    monkeypatch.setattr(uv, "pip_install", lambda _step, *arguments: asked.append(arguments))
    packages = PythonPackages(uv, with_tests=False)
    monkeypatch.setattr(packages, "command", lambda *_command: "")
    monkeypatch.setattr(packages, "folder", tmp_path)
    packages.run()
    assert "--compile-bytecode" in next(arguments for arguments in asked if arguments[0] == "sync")
