"""Errors: stable codes, default messages, one root."""

import pickle

import pytest

import forkyard.auth.errors
import forkyard.base.subprocess
import forkyard.storage.errors
from forkyard.base import errors
from forkyard.base.errors import ForkyardError, InvalidInput, LimitExceeded


def all_errors() -> list[type[ForkyardError]]:
    found, queue = [], [ForkyardError]
    while queue:
        found.append(queue.pop())
        queue += found[-1].__subclasses__()
    return [error for error in found if error.__module__.startswith("forkyard.")]


def test_codes_are_unique_and_every_error_says_something() -> None:
    codes = [error.code for error in all_errors()]
    assert len(codes) > 20
    assert len(codes) == len(set(codes))
    assert all(code.replace("_", "").isalnum() and code.islower() for code in codes)
    for error in all_errors():
        assert error.__doc__, error
        assert error.__doc__.partition("\n")[0].rstrip().endswith("."), error


def test_the_docstring_is_the_default_message() -> None:
    assert str(errors.NotFound()) == "There is no such thing."
    assert str(errors.NotFound("no sandbox x")) == "no sandbox x"
    assert errors.NotFound().message == "There is no such thing."
    assert issubclass(forkyard.storage.errors.InvalidValue, InvalidInput)
    assert issubclass(forkyard.auth.errors.TooManyKeys, LimitExceeded)
    assert issubclass(forkyard.base.subprocess.CommandTimeout, errors.DeadlineExceeded)


@pytest.mark.parametrize("error", [InvalidInput("bad", field="a.b"), LimitExceeded("full", retry_after=3)])
def test_errors_survive_pickling(error: ForkyardError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
