"""Calls for workers that were forked earlier: only those that mean there what they mean here."""

import importlib
import math
import os
import sys
import tempfile
import unittest
from functools import partial
from types import FunctionType
from typing import Any, Callable

from farfork._pickling import PICKLED_BYTES_MAX, ForkedModules, NotShared, pickle_call


def module_function(number: int) -> int:
    return number + 1


def define_in_main(name: str, value: Any) -> None:
    setattr(sys.modules["__main__"], name, value)


def main_function(text: str) -> FunctionType:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def defined_in_main(): return {text!r}", namespace)
    function = namespace["defined_in_main"]
    assert isinstance(function, FunctionType)
    return function


class Pickling(unittest.TestCase):
    def refuse(self, call: Callable[[], Any], modules: ForkedModules) -> None:
        with self.assertRaises(NotShared):
            pickle_call(call, modules)

    def test_a_call_of_a_module_is_pickled(self) -> None:
        modules = ForkedModules()
        self.assertEqual(pickle_call(partial(module_function, 4), modules).load()(), 5)
        self.assertEqual(pickle_call(partial(math.gcd, 4, 6), modules).load()(), 2)
        self.assertEqual(pickle_call(partial(sorted, [2, 1]), modules).load()(), [1, 2])

    def test_what_cannot_be_pickled_or_is_too_large_is_not_shared(self) -> None:
        modules = ForkedModules()
        self.refuse(lambda: 1, modules)
        with open(os.devnull) as file:
            self.refuse(partial(module_function, file), modules)  # type: ignore[arg-type]
        self.refuse(partial(len, bytes(PICKLED_BYTES_MAX)), modules)
        self.refuse(partial(len, [bytes(PICKLED_BYTES_MAX // 4) for _ in range(4)]), modules)

    def test_a_function_that_was_defined_since_is_not_shared(self) -> None:
        first, second = main_function("first"), main_function("second")
        define_in_main("defined_in_main", first)
        try:
            modules = ForkedModules()
            self.assertEqual(pickle_call(first, modules).load()(), "first")
            self.refuse(second, modules)
            define_in_main("defined_in_main", second)
            self.refuse(first, modules)
            self.refuse(second, modules)
            self.assertEqual(pickle_call(second, ForkedModules()).load()(), "second")
        finally:
            delattr(sys.modules["__main__"], "defined_in_main")

    def test_a_module_that_was_imported_or_reloaded_since_is_not_shared(self) -> None:
        before = ForkedModules()
        with tempfile.TemporaryDirectory() as directory:
            name = "farfork_test_imported_since"
            with open(os.path.join(directory, f"{name}.py"), "w") as file:
                file.write("class Thing:\n    pass\ndef make():\n    return Thing()\n")
            sys.path.insert(0, directory)
            try:
                module = importlib.import_module(name)
                self.refuse(module.make, before)
                after = ForkedModules()
                pickle_call(module.make, after)
                pickle_call(partial(str, module.Thing()), after)
                importlib.reload(module)
                self.refuse(module.make, after)
                self.refuse(partial(str, module.Thing()), after)
            finally:
                sys.path.remove(directory)
                sys.modules.pop(name, None)
