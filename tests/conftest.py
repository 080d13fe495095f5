"""Marks every test by its folder (unit, contract, integration, e2e, faults), so that `-m` and the reports know them."""

from pathlib import Path

import pytest

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
