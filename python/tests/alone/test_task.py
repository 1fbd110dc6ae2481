"""Tests that a future returns or raises what its call returned or raised in the child."""

import pickle
import unittest
from typing import Any

from farfork import RemoteTraceback, _task


class Stubborn(Exception):
    """An exception that cannot be made from its arguments alone."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def outcome(call: Any) -> Any:
    return _task.decode_outcome(_task.encode_outcome(call))


class Task(unittest.TestCase):
    def test_the_value_of_a_task_is_returned(self) -> None:
        self.assertEqual(outcome(lambda: {"a": (1, None)}), {"a": (1, None)})

    def test_the_exception_of_a_task_has_its_traceback(self) -> None:
        def divide() -> float:
            return 1 / 0

        with self.assertRaises(ZeroDivisionError) as raised:
            outcome(divide)
        self.assertIsInstance(raised.exception.__cause__, RemoteTraceback)
        self.assertIn("in divide", str(raised.exception.__cause__))

    def test_exit_does_not_end_the_reader(self) -> None:
        with self.assertRaises(SystemExit):
            outcome(lambda: exit(3))

    def test_a_value_that_cannot_be_pickled_is_an_error(self) -> None:
        with self.assertRaises((pickle.PicklingError, AttributeError, TypeError)):
            outcome(lambda: lambda: None)

    def test_an_exception_that_cannot_be_pickled_is_named(self) -> None:
        def refuse() -> None:
            raise Stubborn(1, 2)

        with self.assertRaisesRegex(RuntimeError, "Stubborn: 1 and 2"):
            outcome(refuse)
