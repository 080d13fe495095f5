"""Named points at which a test can kill this process.

`FORKYARD_CRASH_AT=<name>` (or `<name>:<n>` for the n-th time it is reached) sends SIGKILL to the process
itself: no handler, no clean-up, as a power cut would do it. Without the variable a point costs one dictionary
look-up. Tests that play a crash inside their own process install a hook instead.
"""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

KNOWN: set[str] = set()
"""Every point that exists, filled at import by the modules that have them."""

_reached: dict[str, int] = {}
_hooks: list[Callable[[str], None]] = []


def crash_points(*names: str) -> None:
    """Declare points, so that a fault suite can go through all of them."""
    KNOWN.update(names)


def crash_point(name: str) -> None:
    """Die here if the environment says so. Raises ValueError for a point that was not declared."""
    wanted = os.environ.get("FORKYARD_CRASH_AT")
    if wanted is None and not _hooks:
        return
    if name not in KNOWN:
        raise ValueError(f"crash point {name!r} is not declared")
    for hook in tuple(_hooks):
        hook(name)
    if wanted is None:
        return
    at, _, nth = wanted.partition(":")
    if at != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def crash_hook(hook: Callable[[str], None]) -> Generator[None]:
    """Call `hook(name)` at every point reached inside the block; what it raises comes out of the point."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)
