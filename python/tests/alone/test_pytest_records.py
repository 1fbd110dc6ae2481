"""Tests the records of pytest's reports."""

import unittest
from typing import Any

from farfork._pytest_records import plain_report


class NoText:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Records(unittest.TestCase):
    def test_properties_that_are_not_pairs_are_kept(self) -> None:
        properties: list[Any] = [("a", 1), ("a", "b", "c"), 7, None]
        self.assertEqual(plain_report({"user_properties": properties})["user_properties"], properties)

    def test_objects_without_a_text_are_replaced(self) -> None:
        report = plain_report({"user_properties": [(NoText(), NoText()), (NoText(),)], "sections": [NoText()]})
        texts = [*report["user_properties"][0], report["user_properties"][1], *report["sections"]]
        self.assertEqual(texts, ["<ValueError while it was described>"] * 4)


if __name__ == "__main__":
    unittest.main()
