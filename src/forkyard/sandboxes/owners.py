"""Which transitions a living task of this process is carrying out.

An operation ends in a commit, on every path. Should its task end without one (the database went away and stayed away),
nobody finishes the transition: its token has no owner here, and `recovery.resolve_orphans` takes it over.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Owners:
    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def take(self, token: str) -> None:
        """The running task carries out the transition of this token, until the task is over or another takes it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a transition belongs to a task")
        self._tasks[token] = task
        task.add_done_callback(lambda done: self._release(token, done))

    def held(self, token: str) -> bool:
        return token in self._tasks

    def _release(self, token: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(token) is task:
            del self._tasks[token]
