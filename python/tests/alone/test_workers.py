"""Tests which worker runs which call, and when workers are forked and ended: without a daemon, with real channels."""

import logging
import os
import pickle
import socket
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any
from unittest.mock import patch

from farfork import ChildDied, ChildNotStarted, _channel, _protocol
from farfork._channel import CALL_OF_SEED, Channel, Payload
from farfork._checkpoint_lock import Completion
from farfork._future import ChildFuture
from farfork._options import ExecutorOptions
from farfork._output import LOG
from farfork._pickling import ForkedState
from farfork._shared import SharedObjects
from farfork._workers import Worker, WorkerPool, WorkerSeed


def message(kind: int, **fields: Any) -> _protocol.Message:
    return _protocol.decode(_protocol.encode(kind, 0, batch=1, **fields))


def options(children_max: int, retries: int = 0) -> ExecutorOptions:
    return ExecutorOptions([], {}, children_max, None, retries, LOG)


class Host:
    """Records the operations that a pool requests, and has the other ends of the channels."""

    def __init__(self) -> None:
        self.forked: list[tuple[str, int]] = []
        self.killed: list[int] = []
        self.dropped: list[str] = []

    def fork_workers(self, seed: WorkerSeed, indices: range) -> None:
        self.forked += [(seed.id, index) for index in indices]

    def kill_worker(self, worker: Worker, keeps_log: bool = False) -> None:
        self.killed.append(worker.index)

    def drop_seed(self, seed: WorkerSeed) -> None:
        self.dropped.append(seed.id)

    def watch_channel(self, worker: Worker) -> None:
        pass

    def forget_channel(self, worker: Worker) -> None:
        pass

    def cancel_task(self, number: int) -> None:
        pass


class Pool(unittest.TestCase):
    def setUp(self) -> None:
        self.start_pool(retries=0)

    def start_pool(self, retries: int) -> None:
        self.host = Host()
        self.pool = WorkerPool(self.host, options(2, retries))
        self.seed = WorkerSeed(1, "s1", ForkedState(SharedObjects()))
        self.pool.add_seed(self.seed)
        self.ends: dict[int, Channel] = {}

    def tearDown(self) -> None:
        self.pool.fail_all(RuntimeError("the test is over"))
        for end in self.ends.values():
            end.close()

    def add_tasks(self, count: int) -> list[ChildFuture[Any]]:
        futures = [self.pool.add_task(Payload(b"0"), self.seed, CALL_OF_SEED) for _ in range(count)]
        self.pool.schedule()
        return futures

    def start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        self.ends[index] = Channel(theirs.detach(), blocking=True)
        self.pool.handle_started(message(_protocol.STARTED, index=index, child=f"n1.c{index}"), [ours.detach()])
        self.pool.schedule()

    def test_a_cancelled_queued_call_does_not_start(self) -> None:
        cancelled, waiting = self.add_tasks(2)
        # The host ignores the cancel, as if an interrupt had ended it.
        cancelled.cancel()
        self.start(0)
        self.answer(0, "of the second call")
        self.assertEqual((cancelled.child, waiting.result(0)), (None, "of the second call"))
        self.assertTrue(self.pool.is_idle)

    def test_a_future_that_another_thread_has_locked_does_not_block_its_executor(self) -> None:
        (future,) = self.add_tasks(1)
        with future._condition:
            thread = threading.Thread(target=self.start, args=(0,), daemon=True)
            thread.start()
            thread.join(10)
            self.assertFalse(thread.is_alive())
            states = ThreadPoolExecutor().submit(lambda: (future.running(), future.done(), future.cancelled()))
            self.assertEqual(states.result(10), (True, False, False))

    def answer(self, index: int, value: object) -> None:
        frame = self.ends[index].receive_one()
        assert frame is not None
        self.ends[index].send(_channel.OUTCOME, frame.task, Payload(pickle.dumps((True, value))))
        self.complete(self.pool.handle_channel(self.seed.workers[index]))

    def end(self, index: int, **fields: Any) -> None:
        self.ends.pop(index).close()
        fields = {"how": _protocol.ENDED_SIGNAL, "value": 9, **fields}
        self.complete(self.pool.handle_ended(message(_protocol.ENDED, index=index, **fields)))

    def complete(self, completions: list[Completion]) -> None:
        for completion in completions:
            completion()
        self.pool.schedule()

    def test_records_between_calls_are_handled_in_the_context_of_the_latest_call(self) -> None:
        cell: ContextVar[str] = ContextVar("cell")
        cells: list[str] = []
        cell.set("of the call")
        self.pool.add_task(Payload(b"0"), self.seed, CALL_OF_SEED)
        # The thread that requests workers has another context.
        Context().run(self.pool.schedule)
        self.start(0)
        self.answer(0, None)
        cell.set("of this thread")
        handler = logging.Handler()
        setattr(handler, "emit", lambda _: cells.append(cell.get("none")))
        record = logging.makeLogRecord({"name": "farfork.test", "levelno": logging.ERROR})
        with patch.object(logging.getLogger("farfork.test"), "handlers", [handler]):
            self.ends[0].send(_channel.LOG_RECORD, 0, Payload(pickle.dumps((vars(record), pickle.dumps({})))))
            self.complete(self.pool.handle_channel(self.seed.workers[0]))
        self.assertEqual(cells, ["of the call"])

    def test_the_number_of_workers_is_bounded_and_each_runs_many_calls(self) -> None:
        futures = self.add_tasks(3)
        self.assertEqual(self.host.forked, [("s1", 0), ("s1", 1)])
        self.start(0)
        self.start(1)
        self.assertEqual([future.child for future in futures], ["n1.c0", "n1.c1", None])
        self.answer(1, "second")
        self.answer(1, "third")
        self.answer(0, "first")
        self.assertEqual([future.result(0) for future in futures], ["first", "second", "third"])
        self.assertTrue(self.pool.is_idle)
        self.assertEqual(len(self.host.forked), 2)

    def test_the_call_of_a_dead_worker_fails_and_the_worker_is_replaced(self) -> None:
        futures = self.add_tasks(2)
        self.start(0)
        self.end(0)
        with self.assertRaises(ChildDied):
            futures[0].result(0)
        self.start(1)
        self.answer(1, "fine")
        self.assertEqual(futures[1].result(0), "fine")
        self.assertEqual(self.host.forked, [("s1", 0), ("s1", 1)])

    def test_a_call_is_retried_up_to_its_limit(self) -> None:
        self.start_pool(retries=1)
        [future] = self.add_tasks(1)
        self.start(0)
        self.end(0)
        self.assertFalse(future.done())
        self.assertEqual(self.host.forked, [("s1", 0), ("s1", 1)])
        self.start(1)
        self.end(1)
        with self.assertRaises(ChildDied):
            future.result(0)

    def test_an_outcome_sent_before_the_end_of_a_worker_is_used(self) -> None:
        [future] = self.add_tasks(1)
        self.start(0)
        frame = self.ends[0].receive_one()
        assert frame is not None
        self.ends[0].send(_channel.OUTCOME, frame.task, Payload(pickle.dumps((True, "last"))))
        self.end(0)
        self.assertEqual(future.result(0), "last")

    def test_calls_fail_only_if_no_worker_can_be_started(self) -> None:
        futures = self.add_tasks(3)
        self.complete(self.pool.handle_failed(message(_protocol.FAILED, index=1, text="node `n2`: it is gone")))
        self.assertEqual(len(self.host.forked), 2, "a failed start of a worker was repeated")
        self.start(0)
        for value in range(3):
            self.answer(0, value)
        self.assertEqual([future.result(0) for future in futures], [0, 1, 2])
        self.end(0)
        [future] = self.add_tasks(1)
        self.complete(self.pool.handle_failed(message(_protocol.FAILED, index=2, text="node `n2`: it is gone")))
        with self.assertRaisesRegex(ChildNotStarted, "it is gone"):
            future.result(0)

    def test_workers_that_die_at_their_start_are_not_replaced_forever(self) -> None:
        [future] = self.add_tasks(1)
        self.complete(self.pool.handle_ended(message(_protocol.ENDED, index=0, how=_protocol.ENDED_SIGNAL, value=9)))
        with self.assertRaises(ChildDied):
            future.result(0)
        self.assertEqual(len(self.host.forked), 1)

    def test_a_call_that_an_ended_worker_did_not_read_is_run_by_another(self) -> None:
        [first] = self.add_tasks(1)
        self.start(0)
        self.answer(0, "first")
        self.ends.pop(0).close()
        [second] = self.add_tasks(1)
        self.assertEqual((self.seed.workers[0].task, second.child), (None, None))
        self.assertEqual(self.host.forked, [("s1", 0), ("s1", 1)])
        self.complete(self.pool.handle_ended(message(_protocol.ENDED, index=0, how=_protocol.ENDED_SIGNAL, value=9)))
        self.start(1)
        self.answer(1, "second")
        self.assertEqual((first.result(0), second.result(0)), ("first", "second"))

    def test_workers_of_an_older_seed_are_replaced(self) -> None:
        self.add_tasks(2)
        self.start(0)
        self.start(1)
        self.answer(0, None)
        self.answer(1, None)
        newer = WorkerSeed(2, "s2", ForkedState(SharedObjects()))
        self.pool.add_seed(newer)
        self.pool.add_task(Payload(b"0"), newer, CALL_OF_SEED)
        self.pool.schedule()
        self.assertEqual([self.ends[index].receive_one() for index in (0, 1)], [None, None])
        self.assertEqual(self.host.forked[2:], [])
        self.end(0, how=_protocol.ENDED_EXIT, value=0)
        self.assertEqual(self.host.forked[2:], [("s2", 0)])
        self.end(1, how=_protocol.ENDED_EXIT, value=0)
        self.assertEqual(self.host.dropped, ["s1"])

    def test_a_cancelled_call_frees_its_worker(self) -> None:
        futures = self.add_tasks(3)
        self.start(0)
        self.start(1)
        for number in (0, 2):
            futures[number].cancel()
            self.pool.cancel(number)
        self.assertEqual(self.host.killed, [0])
        self.end(0)
        self.answer(1, "fine")
        self.assertEqual((futures[1].result(0), self.pool.is_idle), ("fine", True))
        self.assertEqual(len(self.host.forked), 2)


class Descriptors(unittest.TestCase):
    def test_an_unneeded_worker_leaves_no_descriptor(self) -> None:
        host = Host()
        pool = WorkerPool(host, options(1))
        seed = WorkerSeed(1, "s1", ForkedState(SharedObjects()))
        pool.add_seed(seed)
        pool.add_task(Payload(b"0"), seed, CALL_OF_SEED)
        pool.schedule()
        seed.workers[0].is_retired = True
        ours, theirs = socket.socketpair()
        number = ours.detach()
        pool.handle_started(message(_protocol.STARTED, index=0, child="n1.c0"), [number])
        with self.assertRaises(OSError):
            os.fstat(number)
        theirs.close()
