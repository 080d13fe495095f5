"""Samples, percentiles, and what a row of the table says."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class Samples:
    """Values of one thing measured again and again, in the unit of its row."""

    values: list[float] = field(default_factory=list[float])

    def add(self, value: float) -> None:
        self.values.append(value)

    @contextmanager
    def timed(self) -> Generator[None]:
        """Add the milliseconds that the block takes."""
        started = time.perf_counter()
        yield
        self.add((time.perf_counter() - started) * 1000)

    @property
    def p50(self) -> float:
        return percentile(self.values, 50)

    @property
    def p95(self) -> float:
        return percentile(self.values, 95)


@dataclass(slots=True)
class Row:
    """One line of the table. `value` is the median unless the title says otherwise."""

    name: str
    title: str
    value: float
    unit: str
    bar: float
    """The value that it is held against, in the same unit."""
    bar_says: str
    p95: float | None = None
    floor: float | None = None
    floor_says: str = ""
    runs: int = 0
    better: Literal["lower", "higher"] = "lower"
    note: str = ""
    stages: dict[str, float] = field(default_factory=dict[str, float])
    """Mean milliseconds by stage, where the server tells them."""

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def percentile(values: list[float], percent: float) -> float:
    """By linear interpolation. Raises ValueError without values."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def wait_until(
    condition: Callable[[], bool], what: str, *, within_s: float = 30.0, every_s: float = 0.001
) -> None:
    """Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(every_s)
