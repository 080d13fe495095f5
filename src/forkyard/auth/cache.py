"""Keys that were found valid a moment ago, so that a request does not wait for the database."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from forkyard.auth.principal import Principal


@dataclass(frozen=True, slots=True)
class CachedKey:
    """What was known of a key at `seen` (monotonic seconds)."""

    principal: Principal
    expires_at: datetime | None
    seen: float


class KeyCache:
    """Valid keys by hash: at most `size`, the least used go first, none older than `max_age` seconds.

    `max_age` bounds how long a key that another process revoked still works here. For one that this process
    revokes, `forget` takes effect at once, also for look-ups that are under way: their results are not kept.
    """

    def __init__(self, max_age: float, size: int = 10_000) -> None:
        self._max_age = max_age
        self._size = size
        self._keys: OrderedDict[str, CachedKey] = OrderedDict()
        self._forgets = 0

    def get(self, key_hash: str, monotonic: float) -> CachedKey | None:
        """The entry, if there is one that is not too old."""
        entry = self._keys.get(key_hash)
        if entry is None:
            return None
        if monotonic - entry.seen > self._max_age:
            del self._keys[key_hash]
            return None
        self._keys.move_to_end(key_hash)
        return entry

    def begin(self) -> int:
        """Call before the look-up in the database; its answer goes to `put`."""
        return self._forgets

    def put(self, key_hash: str, entry: CachedKey, begun: int) -> None:
        """Keep the result of a look-up, unless something was forgotten since it began."""
        if begun != self._forgets:
            return
        self._keys[key_hash] = entry
        if len(self._keys) > self._size:
            self._keys.popitem(last=False)

    def forget(self, key_id: str) -> None:
        """This key is not valid any more."""
        self._forgets += 1
        for key_hash in [name for name, entry in self._keys.items() if entry.principal.key_id == key_id]:
            del self._keys[key_hash]
