"""Objects to which calls refer by number: workers have them in memory since their fork."""

from __future__ import annotations

from typing import Iterable


class SharedObjects:
    """Numbered objects. They are found by identity, and kept alive."""

    def __init__(self, objects: Iterable[object] = ()) -> None:
        self._objects: list[object] = []
        self._numbers: dict[int, int] = {}
        for value in objects:
            self.add(value)

    def __len__(self) -> int:
        return len(self._objects)

    def __getitem__(self, number: int) -> object:
        return self._objects[number]

    def add(self, value: object) -> None:
        """Numbers an object. Workers that were forked earlier do not have it."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)

    def find(self, value: object) -> int | None:
        """The number of an object; ``None`` if it has none."""
        return self._numbers.get(id(value))
