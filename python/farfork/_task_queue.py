"""Calls that wait for a worker, in order. To add, remove or take a call takes amortized constant time."""

from __future__ import annotations

from collections import deque
from typing import Generic, Iterator, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """A queue from which any task can be removed."""

    def __init__(self) -> None:
        self._tasks: deque[T] = deque()
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._tasks) - len(self._removed)

    def __iter__(self) -> Iterator[T]:
        return (task for task in self._tasks if id(task) not in self._removed)

    def append(self, task: T) -> None:
        self._tasks.append(task)

    def append_first(self, task: T) -> None:
        self._tasks.appendleft(task)

    def remove(self, task: T) -> None:
        """Removes a waiting task."""
        # The entry remains in the deque until take() reaches it. So the task stays referenced, and its id() stays
        # unique.
        self._removed.add(id(task))

    def take(self) -> T | None:
        """Takes the first task, if there is one."""
        while self._tasks:
            task = self._tasks.popleft()
            if id(task) not in self._removed:
                return task
            self._removed.discard(id(task))
        return None

    def take_all(self) -> list[T]:
        tasks = list(self)
        self._tasks.clear()
        self._removed.clear()
        return tasks
