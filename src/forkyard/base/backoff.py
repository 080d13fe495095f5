"""Waiting longer after each failure, with jitter."""

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Delays that double from `first` to `most` (seconds), each drawn evenly from its upper half.

    The jitter keeps those who failed together from trying together.
    """

    first: float = 0.1
    most: float = 30.0
    _next: float = field(default=0.0, init=False)

    def next_delay(self) -> float:
        """Seconds to wait before the next try."""
        self._next = min(self.most, self._next * 2 or self.first)
        return self._next * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: start again with `first`."""
        self._next = 0.0
