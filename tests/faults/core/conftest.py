"""The world of the unit tests, for runs that take longer."""

from tests.unit.sandboxes.conftest import world

__all__ = ["world"]
