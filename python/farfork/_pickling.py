"""Pickles calls for workers that were forked earlier. Refuses calls that such a worker would run differently from this
process.

A worker has shared objects in memory, so the pickle contains only their numbers.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from dataclasses import dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Callable, Iterable

from ._channel import Payload
from ._definitions import DefinitionChanged, ForkedDefinitions, NameCheck
from ._shared import SharedObjects

#: A larger call is not pickled: it needs a new seed. That seed has the call's arguments in memory, and children fetch
#: the parts that they use.
PICKLED_BYTES_MAX = 16 << 20


#: Returns the number of a shared object; ``None`` for any other.
FindNumber = Callable[[object], "int | None"]


class NotShared(Exception):
    """Existing workers cannot run the call: it needs a new seed."""


class ForkedState:
    """The state of a seed's workers: the definitions of all modules, and the shared objects, at the time the seed was made.
    """

    def __init__(self, shared: SharedObjects) -> None:
        self.definitions = ForkedDefinitions()
        self.shared_count = len(shared)


@dataclass(frozen=True)
class CallPickling:
    """The way in which an executor pickles calls."""

    shared: SharedObjects
    #: The module ``cloudpickle``, for calls that ``pickle`` cannot pickle. Then no call is too large, and none needs
    #: new workers.
    cloudpickle: ModuleType | None = None

    def pickle_calls(self, calls: Iterable[Callable[[], Any]], state: ForkedState) -> list[Payload]:
        """Pickles calls for workers. Raises :class:`NotShared` if a call cannot be pickled, is too large, or uses a
        definition that changed since the fork.
        """
        names = state.definitions.compare()
        return [self._pickle_call(call, state, names) for call in calls]

    def _pickle_call(self, call: Callable[[], Any], state: ForkedState, names: NameCheck) -> Payload:
        writer = _PayloadWriter(PICKLED_BYTES_MAX if self.cloudpickle is None else sys.maxsize)
        try:
            if self.shared:
                _SharingPickler(writer, names, self._find_numbers(state)).dump(call)
            else:
                _CallPickler(writer, names).dump(call)
        except NotShared:
            raise
        except Exception as error:  # Any object may raise anything when it is pickled.
            if self.cloudpickle is None:
                raise NotShared from error
            return self._pickle_by_value(call, state, names)
        return writer.payload

    def _pickle_by_value(self, call: Callable[[], Any], state: ForkedState, names: NameCheck) -> Payload:
        """Pickles a call with ``cloudpickle``: functions of ``__main__`` and local functions include their code and
        variables.
        """
        writer = _PayloadWriter(sys.maxsize)
        _by_value_pickler(self.cloudpickle)(writer, names, self._find_numbers(state)).dump(call)
        return writer.payload

    def _find_numbers(self, state: ForkedState) -> FindNumber:
        """Returns a function that finds the number of a shared object that workers of a seed have."""

        def find_number(value: object) -> int | None:
            number = self.shared.find(value)
            if number is None or number < state.shared_count:
                return number
            if self.cloudpickle is None:
                raise NotShared
            return None

        return find_number


class _CallPickler(pickle.Pickler):
    def __init__(self, writer: _PayloadWriter, names: NameCheck) -> None:
        super().__init__(writer.file, 5, buffer_callback=writer.take_buffer)
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


class _SharingPickler(_CallPickler):
    """Pickles shared objects as their numbers. Slower than its base: it looks up every object."""

    def __init__(self, writer: _PayloadWriter, names: NameCheck, find_number: FindNumber) -> None:
        super().__init__(writer, names)
        self._find_number = find_number

    def persistent_id(self, value: Any) -> int | None:
        return self._find_number(value)


@cache
def _by_value_pickler(cloudpickle: Any) -> Any:
    class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, writer: _PayloadWriter, names: NameCheck, find_number: FindNumber) -> None:
            super().__init__(writer.file, 5, buffer_callback=writer.take_buffer)
            self._names = names
            self._find_number = find_number

        def persistent_id(self, value: Any) -> int | None:
            return self._find_number(value)

        def reducer_override(self, value: Any) -> Any:
            reduced = super().reducer_override(value)
            if reduced is NotImplemented and isinstance(value, (FunctionType, type)):
                self._names.require_not_replaced(value.__module__, value.__qualname__)
            return reduced

    return ByValuePickler


class _PayloadWriter:
    """Collects the output of a pickler. Raises :class:`NotShared` if it exceeds a limit."""

    def __init__(self, bytes_max: int) -> None:
        self.file = _LimitedFile(self._require_room)
        self._buffers: list[bytes] = []
        self._buffers_bytes = 0
        self._bytes_max = bytes_max

    def take_buffer(self, buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        self._require_room(len(raw))
        self._buffers_bytes += len(raw)
        # A copy, because the program may change its array before it is sent.
        self._buffers.append(bytes(raw))

    @property
    def payload(self) -> Payload:
        return Payload(self.file.getvalue(), self._buffers)

    def _require_room(self, count: int) -> None:
        if self.file.tell() + self._buffers_bytes + count > self._bytes_max:
            raise NotShared


class _LimitedFile(io.BytesIO):
    def __init__(self, require_room: Callable[[int], None]) -> None:
        super().__init__()
        self._require_room = require_room

    def write(self, data: Any) -> int:
        self._require_room(memoryview(data).nbytes)
        return super().write(data)


class _CallUnpickler(pickle.Unpickler):
    def __init__(self, payload: Payload, shared: SharedObjects) -> None:
        super().__init__(io.BytesIO(payload.pickle), buffers=payload.buffers)
        self._shared = shared

    def persistent_load(self, number: Any) -> object:
        return self._shared[number]


def load_call(payload: Payload, shared: SharedObjects) -> Any:
    """In a worker: unpickles a call."""
    return _CallUnpickler(payload, shared).load()
