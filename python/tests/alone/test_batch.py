"""Tests when calls of a batch are forked, and how futures end."""

import unittest
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from farfork import ChildDied, ChildNotStarted, ChildTimeout, _protocol
from farfork._batch import Batch
from farfork._future import ChildFuture


def message(kind: int, **fields: Any) -> _protocol.Message:
    return _protocol.decode(_protocol.encode(kind, 0, **fields))


class Futures(unittest.TestCase):
    def setUp(self) -> None:
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1

    def batch(self, count: int) -> Batch:
        return Batch(1, "n1.s0", [ChildFuture(self.kill) for _ in range(count)])

    def test_the_number_of_running_children_is_bounded(self) -> None:
        batch = self.batch(5)
        self.assertEqual(batch.allocate(2), range(0, 2))
        self.assertEqual(batch.allocate(0), range(2, 2))
        self.assertEqual(batch.allocate(9), range(2, 5))
        self.assertFalse(batch.is_over)

    def test_a_cancelled_call_is_not_forked(self) -> None:
        batch = self.batch(4)
        batch.futures[0].cancel()
        batch.futures[2].cancel()
        self.assertEqual(batch.allocate(9), range(1, 2))
        self.assertEqual(batch.allocate(9), range(3, 4))
        self.assertEqual(batch.allocate(9), range(4, 4))

    def test_a_running_call_can_be_cancelled_once(self) -> None:
        batch = self.batch(1)
        future = batch.futures[0]
        batch.allocate(1)
        self.assertFalse(batch.handle_started(message(_protocol.STARTED, child="n2.c0")))
        self.assertEqual((future.running(), future.child, future.node), (True, "n2.c0", "n2"))
        self.assertTrue(future.cancel() and future.cancel())
        self.assertEqual((self.killed, future.running(), future.cancelled()), (1, False, True))
        with self.assertRaises(CancelledError):
            future.result(0)
        batch.handle_ended(message(_protocol.ENDED, how=_protocol.ENDED_SIGNAL, value=9), [])()
        self.assertTrue(future.cancelled() and batch.is_over)

    def test_a_child_that_starts_after_its_call_was_cancelled_is_killed(self) -> None:
        batch = self.batch(1)
        batch.allocate(1)
        batch.futures[0].cancel()
        self.assertTrue(batch.handle_started(message(_protocol.STARTED, child="n2.c0")))

    def test_ends_without_a_result_are_errors(self) -> None:
        ends = [
            (ChildNotStarted, message(_protocol.FAILED, text="node `n2`: it is gone")),
            (ChildDied, message(_protocol.ENDED, how=_protocol.ENDED_EXIT, value=3)),
            (ChildDied, message(_protocol.ENDED, how=_protocol.ENDED_EXIT, value=0)),
            (ChildDied, message(_protocol.ENDED, how=_protocol.ENDED_SIGNAL, value=11)),
            (ChildDied, message(_protocol.ENDED, how=_protocol.ENDED_SIGNAL, value=9, text="it needed more")),
            (ChildDied, message(_protocol.ENDED, how=_protocol.ENDED_LOST, text="its exit status cannot be read")),
        ]
        for error, end in ends:
            batch = self.batch(1)
            batch.allocate(1)
            batch.handle_started(message(_protocol.STARTED, child="n2.c0"))
            batch.handle_ended(end, [])()
            with self.assertRaises(error):
                batch.futures[0].result(0)
            self.assertTrue(batch.is_over)

    def test_a_kill_for_the_time_limit_is_a_timeout(self) -> None:
        def raised(limit: int) -> ChildDied:
            batch = self.batch(1)
            batch.allocate(1)
            batch.handle_started(message(_protocol.STARTED, child="n2.c0"))
            batch.handle_ended(message(_protocol.ENDED, how=_protocol.ENDED_SIGNAL, value=9, limit=limit), [])()
            with self.assertRaises(ChildDied) as raised:
                batch.futures[0].result(0)
            return raised.exception

        timeout, memory, none = raised(_protocol.LIMIT_TIME), raised(_protocol.LIMIT_MEMORY), raised(0)
        self.assertIsInstance(timeout, ChildTimeout)
        self.assertIsInstance(timeout, FutureTimeoutError)
        self.assertEqual((timeout.signal, timeout.limit), (9, "time"))
        self.assertEqual((type(memory), memory.limit), (ChildDied, "memory"))
        self.assertEqual((type(none), none.limit), (ChildDied, None))
