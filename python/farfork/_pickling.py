"""Pickles calls for workers that were forked earlier, and refuses those that such a worker would not run as this process does.

A worker has the functions and classes of the moment when it was forked. A pickle names them, so it is right only if the
name still leads to the same object.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType, ModuleType
from typing import Any, Callable

from ._channel import Payload

#: A call that has more than this is not pickled: a fresh seed has its arguments in memory, and children fetch what they use.
PICKLED_BYTES_MAX = 16 << 20


class NotShared(Exception):
    """The call can only be had from a seed that is made now."""


class ForkedModules:
    """The modules as they were when a seed was made."""

    def __init__(self) -> None:
        # A module that is reloaded gets another specification.
        self._specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
        # Notebooks and interactive sessions define functions and classes again and again.
        self._main = {name: value for name, value in vars(_main_module()).items() if isinstance(value, (FunctionType, type))}

    def require_unchanged(self, definition: Any) -> None:
        """Raises :class:`NotShared` if a function or class is not what its name led to when the seed was made."""
        name = definition.__module__
        if name == "__main__":
            root = definition.__qualname__.partition(".")[0]
            current = vars(_main_module()).get(root)
            if current is None or self._main.get(root) is not current:
                raise NotShared
        elif name not in self._specs or self._specs[name] is not getattr(sys.modules.get(name), "__spec__", None):
            raise NotShared


class _CallPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, modules: ForkedModules, buffer_callback: Callable[[Any], None]) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self._modules = modules

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type)):
            self._modules.require_unchanged(value)
        return NotImplemented


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


def pickle_call(call: Callable[[], Any], modules: ForkedModules) -> Payload:
    """A call for a worker. Raises :class:`NotShared` if it cannot be pickled, is too large, or has changed since."""
    file, buffers = _LimitedFile(), []

    def take_buffer(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        file.require_room(len(raw))
        file.buffers_bytes += len(raw)
        buffers.append(raw)

    try:
        _CallPickler(file, modules, take_buffer).dump(call)
    except NotShared:
        raise
    except Exception as error:  # Any object may raise anything when it is pickled.
        raise NotShared from error
    return Payload(file.getvalue(), buffers)


def _main_module() -> ModuleType:
    return sys.modules["__main__"]
