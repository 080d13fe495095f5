"""Pools are let go when memory is low, and filled again only when clearly enough is free."""

from forkyard.host.memory import HostMemory
from forkyard.node.pressure import MemoryPressure
from forkyard.testing.clock import ManualClock

GIB = 1 << 30


class Pool:
    def __init__(self) -> None:
        self.calls: list[bool] = []

    def hold(self, held: bool) -> None:
        self.calls.append(held)


def test_the_pools_are_let_go_once_and_come_back_with_a_margin() -> None:
    pool, other = Pool(), Pool()
    pressure = MemoryPressure([pool.hold, other.hold], ManualClock())
    for available, expected in (
        (8 * GIB, []),
        (int(1.1 * GIB), []),  # 5 % of 20 GiB is 1 GiB
        (int(0.9 * GIB), [True]),
        (int(1.2 * GIB), [True]),  # above the mark, not clearly
        (int(1.6 * GIB), [True, False]),
        (int(0.4 * GIB), [True, False, True]),
    ):
        pressure.decide(HostMemory(20 * GIB, available))
        assert pool.calls == other.calls == expected


def test_a_small_host_keeps_half_a_gibibyte() -> None:
    pool = Pool()
    pressure = MemoryPressure([pool.hold], ManualClock())
    pressure.decide(HostMemory(2 * GIB, GIB // 2 + 1))
    assert pool.calls == []
    pressure.decide(HostMemory(2 * GIB, GIB // 2 - 1))
    assert pool.calls == [True]
