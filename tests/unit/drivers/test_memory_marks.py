from forkyard.drivers.gvisor.memory_marks import MemoryMarks
from forkyard.host.cgroups import Usage


def usage(memory: int, cache: int = 0) -> Usage:
    return Usage(cpu_ns=0, memory=memory, cache=cache, pids=1)


def test_each_mark_is_told_once_until_the_memory_has_been_below_it() -> None:
    marks = MemoryMarks()
    marks.set("a", [70, 95, 85])
    seen = [marks.look({"a": usage(used)}) for used in (10, 70, 84, 85, 96, 99, 60, 72)]
    assert seen == [[], ["a"], [], ["a"], ["a"], [], [], ["a"]]


def test_page_cache_of_files_is_not_memory_in_use() -> None:
    marks = MemoryMarks()
    marks.set("a", [70])
    assert marks.look({"a": usage(100, cache=40)}) == []
    assert marks.look({"a": usage(100, cache=20)}) == ["a"]


def test_one_that_is_gone_is_forgotten_and_a_new_watch_begins_anew() -> None:
    marks = MemoryMarks()
    marks.set("a", [70])
    marks.set("b", [70])
    assert marks.look({"a": usage(80), "b": usage(1)}) == ["a"]
    marks.set("a", [70])
    assert marks.look({"a": usage(80)}) == ["a"]
    assert marks.look({"a": usage(10), "b": usage(80)}) == []
