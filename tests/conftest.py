"""Marks every test by its folder (unit, contract, integration, e2e, faults), so that `-m` and the reports know them."""

import sys
from io import TextIOBase
from pathlib import Path

import pytest
from hypothesis import settings

from forkyard.base.logging import configure_logging

# A shared machine may stop a test for longer than any bound on one example allows.
settings.register_profile("forkyard", deadline=None)
settings.load_profile("forkyard")


class _Stderr(TextIOBase):
    """Whatever is standard error at the moment, as pytest exchanges it for every test."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


# Without this, structlog draws a picture of every exception, which takes seconds.
configure_logging("pretty", stream=_Stderr())

pytest_plugins = ["forkyard.testing.database"]

_HERE = Path(__file__).parent
_SUITES = ("unit", "contract", "integration", "e2e", "faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        suite = item.path.relative_to(_HERE).parts[0]
        if suite in _SUITES:
            item.add_marker(suite)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A folder that has no test yet is not a failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not session.config.getoption("keyword"):
        session.exitstatus = pytest.ExitCode.OK
