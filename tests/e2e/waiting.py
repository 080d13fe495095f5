"""Waiting for something to become true, with a deadline and never a fixed sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, *, timeout_s: float = 20.0, interval_s: float = 0.02) -> T:
    """The first answer of `look` that is not None. Raises AssertionError saying what did not come."""
    deadline = time.monotonic() + timeout_s
    while (answer := look()) is None:
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(interval_s)
    return answer
