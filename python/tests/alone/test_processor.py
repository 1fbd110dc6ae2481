"""Tests which CPUs a list of the kernel names."""

import os
import unittest
from unittest import mock

from farfork import _processor


class ProcessorLists(unittest.TestCase):
    def test_a_list_may_have_gaps(self) -> None:
        parse = _processor.parse_processor_list
        self.assertEqual(parse("0\n"), {0})
        self.assertEqual(parse("0-3\n"), {0, 1, 2, 3})
        self.assertEqual(parse("0-2,8,10-11\n"), {0, 1, 2, 8, 10, 11})
        self.assertRaises(ValueError, parse, "\n")

    def test_a_thread_that_may_not_run_on_all_processors_is_not_pinned(self) -> None:
        before = os.sched_getaffinity(0)
        with mock.patch.object(_processor, "_possible", frozenset(before | {max(before) + 2})):
            self.assertEqual(_processor.pin_thread(), 0)
        self.assertEqual(os.sched_getaffinity(0), before)

    def test_a_thread_that_may_run_on_all_processors_is_pinned(self) -> None:
        before = os.sched_getaffinity(0)
        with mock.patch.object(_processor, "_possible", frozenset(before)):
            thread = _processor.pin_thread()
            self.assertNotEqual(thread, 0)
            self.assertEqual(len(os.sched_getaffinity(0)), 1)
            _processor.unpin_thread(thread)
        self.assertEqual(os.sched_getaffinity(0), before)
