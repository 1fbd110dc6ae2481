"""Tests that a call is pickled for existing workers only if it has the same meaning there."""

import functools
import importlib
import math
import os
import sys
import tempfile
import unittest
from functools import partial
from types import FunctionType
from typing import Any, Callable

from farfork._channel import Payload
from farfork._pickling import PICKLED_BYTES_MAX, CallPickling, ForkedState, NotShared, load_call
from farfork._shared import SharedObjects

NO_OBJECTS = SharedObjects()


def pickle_one(call: Callable[[], Any], state: ForkedState, shared: SharedObjects = NO_OBJECTS) -> Payload:
    [payload] = CallPickling(shared).pickle_calls([call], state)
    return payload


def module_function(number: int) -> int:
    return number + 1


@functools.lru_cache
def cached_function(number: int) -> int:
    return number


def define_in_main(name: str, value: Any) -> None:
    setattr(sys.modules["__main__"], name, value)


def main_function(text: str) -> FunctionType:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def defined_in_main(): return {text!r}", namespace)
    function = namespace["defined_in_main"]
    assert isinstance(function, FunctionType)
    return function


class Pickling(unittest.TestCase):
    def refuse(self, call: Callable[[], Any], state: ForkedState) -> None:
        with self.assertRaises(NotShared):
            pickle_one(call, state)

    def test_a_call_of_a_module_is_pickled(self) -> None:
        state = ForkedState(NO_OBJECTS)
        self.assertEqual(pickle_one(partial(module_function, 4), state).load()(), 5)
        self.assertEqual(pickle_one(partial(math.gcd, 4, 6), state).load()(), 2)
        self.assertEqual(pickle_one(partial(sorted, [2, 1]), state).load()(), [1, 2])

    def test_calls_that_cannot_be_pickled_or_are_too_large_are_not_shared(self) -> None:
        state = ForkedState(NO_OBJECTS)
        self.refuse(lambda: 1, state)
        with open(os.devnull) as file:
            self.refuse(partial(module_function, file), state)  # type: ignore[arg-type]
        self.refuse(partial(len, bytes(PICKLED_BYTES_MAX)), state)
        self.refuse(partial(len, [bytes(PICKLED_BYTES_MAX // 4) for _ in range(4)]), state)

    def test_a_function_defined_after_the_fork_is_not_shared(self) -> None:
        first, second = main_function("first"), main_function("second")
        define_in_main("defined_in_main", first)
        try:
            state = ForkedState(NO_OBJECTS)
            self.assertEqual(pickle_one(first, state).load()(), "first")
            self.refuse(second, state)
            define_in_main("defined_in_main", second)
            self.refuse(first, state)
            self.refuse(second, state)
            self.assertEqual(pickle_one(second, ForkedState(NO_OBJECTS)).load()(), "second")
        finally:
            delattr(sys.modules["__main__"], "defined_in_main")

    def test_any_new_definition_in_main_may_be_used_by_a_call(self) -> None:
        state = ForkedState(NO_OBJECTS)
        first = main_function("first")
        define_in_main("helper_in_main", first)
        try:
            # A call that uses no function of __main__ is still pickled.
            pickle_one(partial(module_function, 4), state)
            state = ForkedState(NO_OBJECTS)
            first.__code__ = main_function("changed").__code__
            define_in_main("other_in_main", main_function("other"))
            self.refuse(first, state)
        finally:
            for name in ("helper_in_main", "other_in_main"):
                if hasattr(sys.modules["__main__"], name):
                    delattr(sys.modules["__main__"], name)

    def test_names_of_other_objects_are_compared(self) -> None:
        module = sys.modules[__name__]
        before = cached_function
        state = ForkedState(NO_OBJECTS)
        self.assertEqual(pickle_one(partial(cached_function, 1), state).load()(), 1)
        try:
            setattr(module, "cached_function", functools.lru_cache(module_function))
            getattr(module, "cached_function").__qualname__ = "cached_function"
            self.refuse(partial(getattr(module, "cached_function"), 1), state)
        finally:
            setattr(module, "cached_function", before)

    def test_a_shared_object_is_pickled_as_a_number(self) -> None:
        table = [bytes(PICKLED_BYTES_MAX)]
        shared = SharedObjects([table])
        state = ForkedState(shared)
        payload = pickle_one(partial(len, table), state, shared)
        self.assertLess(len(payload.pickle), 100)
        self.assertIs(load_call(payload, shared).args[0], table)
        later = [1]
        shared.add(later)
        with self.assertRaises(NotShared):
            pickle_one(partial(len, later), state, shared)
        self.assertIs(load_call(pickle_one(partial(len, later), ForkedState(shared), shared), shared).args[0], later)

    def test_a_module_imported_or_reloaded_after_the_fork_is_not_shared(self) -> None:
        before = ForkedState(NO_OBJECTS)
        with tempfile.TemporaryDirectory() as directory:
            name = "farfork_test_imported_since"
            with open(os.path.join(directory, f"{name}.py"), "w") as file:
                file.write("class Thing:\n    pass\ndef make():\n    return Thing()\n")
            sys.path.insert(0, directory)
            try:
                module = importlib.import_module(name)
                self.refuse(module.make, before)
                after = ForkedState(NO_OBJECTS)
                pickle_one(module.make, after)
                pickle_one(partial(str, module.Thing()), after)
                importlib.reload(module)
                self.refuse(module.make, after)
                self.refuse(partial(str, module.Thing()), after)
            finally:
                sys.path.remove(directory)
                sys.modules.pop(name, None)
