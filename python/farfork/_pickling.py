"""Pickles calls for workers that were forked earlier, and refuses those that such a worker would not run as this process does.

A worker has the functions and classes of the moment when it was forked. A pickle names them, so it is right only if the
name still leads to the same object.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, Callable, Iterable

from ._channel import Payload

#: A call that has more than this is not pickled: a fresh seed has its arguments in memory, and children fetch what they use.
PICKLED_BYTES_MAX = 16 << 20


class NotShared(Exception):
    """The call can only be had from a seed that is made now."""


class ForkedModules:
    """The definitions of all modules as they were when a seed was made."""

    def __init__(self) -> None:
        modules = [(name, module) for name, module in list(sys.modules.items()) if name != "__main__"]
        self._globals = {name: dict(vars(module)) for name, module in modules if isinstance(module, ModuleType)}
        self._main = _main_definitions()

    def compare(self) -> NameCheck:
        """For the calls of one submission."""
        return NameCheck(self._globals, self._main)


class NameCheck:
    """Compares what global names lead to now with what they led to when a seed was made."""

    def __init__(self, module_globals: dict[str, dict[str, Any]], main: list[tuple[str, Any]]) -> None:
        self._globals, self._main = module_globals, main

    @cached_property
    def _is_main_changed(self) -> bool:
        return _main_definitions() != self._main

    def require_unchanged(self, module: str | None, name: str) -> None:
        """Raises :class:`NotShared` if a global name may lead to something else."""
        if module == "__main__":
            # A definition may use any other: notebooks and interactive sessions define functions and classes again and again.
            if self._is_main_changed:
                raise NotShared
            return
        root = name.partition(".")[0]
        then, now = self._globals.get(str(module)), getattr(sys.modules.get(str(module)), "__dict__", {})
        if then is None or root not in then or then[root] is not now.get(root):
            raise NotShared


def _main_definitions() -> list[tuple[str, Any]]:
    """What identifies the functions, classes and other callables of ``__main__``. Data is not kept alive."""
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
    """Objects that equal others only if they are the same."""

    def __init__(self, *objects: Any) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity) or len(self._objects) != len(other._objects):
            return False
        return all(ours is theirs for ours, theirs in zip(self._objects, other._objects))

    __hash__ = None  # type: ignore[assignment]


class _CallPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: NameCheck, buffer_callback: Callable[[Any], None]) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self._names = names

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type)):
            self._names.require_unchanged(value.__module__, value.__qualname__)
            return NotImplemented
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(5)
        if isinstance(reduced, str):
            # A global name.
            self._names.require_unchanged(pickle.whichmodule(value, reduced), reduced)  # type: ignore[attr-defined]
        return reduced


class _LimitedFile(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.buffers_bytes = 0

    def write(self, data: Any) -> int:
        self.require_room(memoryview(data).nbytes)
        return super().write(data)

    def require_room(self, count: int) -> None:
        if self.tell() + self.buffers_bytes + count > PICKLED_BYTES_MAX:
            raise NotShared


def pickle_calls(calls: Iterable[Callable[[], Any]], modules: ForkedModules) -> list[Payload]:
    """Calls for workers. Raises :class:`NotShared` if one cannot be pickled, is too large, or has changed since."""
    names = modules.compare()
    return [_pickle_call(call, names) for call in calls]


def _pickle_call(call: Callable[[], Any], names: NameCheck) -> Payload:
    file, buffers = _LimitedFile(), []

    def take_buffer(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        file.require_room(len(raw))
        file.buffers_bytes += len(raw)
        # A copy: the program may change its array before it is sent.
        buffers.append(bytes(raw))

    try:
        _CallPickler(file, names, take_buffer).dump(call)
    except NotShared:
        raise
    except Exception as error:  # Any object may raise anything when it is pickled.
        raise NotShared from error
    return Payload(file.getvalue(), buffers)
