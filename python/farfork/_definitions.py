"""Records the objects to which the names of functions and classes referred when a seed was made.

A pickle refers to functions and classes by name. So a call is correct in a worker only if its names still refer to the same
objects.
"""

from __future__ import annotations

import sys
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any


class DefinitionChanged(Exception):
    """A name may refer to a different object than in workers of the seed."""


class ForkedDefinitions:
    """The definitions of all modules at the time a seed was made."""

    def __init__(self) -> None:
        modules = [(name, module) for name, module in list(sys.modules.items()) if name != "__main__"]
        self._globals = {name: dict(vars(module)) for name, module in modules if isinstance(module, ModuleType)}
        self._main = _main_definitions()

    def compare(self) -> NameCheck:
        """Returns a comparison for the calls of one submission."""
        return NameCheck(self._globals, self._main)


class NameCheck:
    """Compares the current objects of global names with those at the time a seed was made."""

    def __init__(self, module_globals: dict[str, dict[str, Any]], main: list[tuple[str, Any]]) -> None:
        self._globals, self._main = module_globals, main

    @cached_property
    def _is_main_changed(self) -> bool:
        return _main_definitions() != self._main

    def require_unchanged(self, module: str | None, name: str) -> None:
        """Raises :class:`DefinitionChanged` if a global name may refer to a different object than at the fork."""
        if module == "__main__":
            # The definition may use any other definition in `__main__`. Notebooks and interactive sessions redefine
            # those frequently.
            if self._is_main_changed:
                raise DefinitionChanged(f"a definition of __main__ has changed since the workers were forked: {name} may use it")
            return
        root = name.partition(".")[0]
        then = self._globals.get(str(module))
        if then is None or root not in then:
            raise DefinitionChanged(f"{module}.{name} was defined after the workers were forked")
        self.require_not_replaced(module, name)

    def require_not_replaced(self, module: str | None, name: str) -> None:
        """Raises :class:`DefinitionChanged` if a global name of an imported module referred to another object at the fork.
        """
        root = name.partition(".")[0]
        then, now = self._globals.get(str(module), {}), getattr(sys.modules.get(str(module)), "__dict__", {})
        if root in then and then[root] is not now.get(root):
            raise DefinitionChanged(f"{module}.{name} has changed since the workers were forked")


def _main_definitions() -> list[tuple[str, Any]]:
    """Identifies the functions, classes and other callables of ``__main__``. Keeps these alive, but no other variables."""
    found: list[tuple[str, Any]] = []
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, FunctionType):
            found.append((name, _Identity(value, value.__code__)))
        elif isinstance(value, type):
            found.append((name, _Identity(value, *vars(value).values())))
        elif callable(value):
            found.append((name, _Identity(value)))
    return found


class _Identity:
    """Objects that are equal only if they are identical."""

    def __init__(self, *objects: Any) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity) or len(self._objects) != len(other._objects):
            return False
        return all(ours is theirs for ours, theirs in zip(self._objects, other._objects))

    __hash__ = None  # type: ignore[assignment]
