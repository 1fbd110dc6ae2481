"""Tests calls in workers: which worker runs which call, what workers keep and see, how they end and are replaced."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, as_completed, wait
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any, Callable

import farfork
from farfork._errors import RemoteTraceback

from .. import memory_limit, set_memory_limit
from . import PATIENCE_S, Forked, command, nodes, wait_for_no_seed

TABLE = {number: f"value {number}" for number in range(200_000)}

#: Data that calls store in their worker.
kept: list[int] = []

#: Memory that :func:`leave_memory` has filled.
blocks: list[bytes] = []

state = "as it was when the workers were forked"


def square(number: int) -> int:
    if number == 77:
        raise KeyError("seventy-seven")
    return number * number


def keep(number: int) -> tuple[str, list[int]]:
    kept.append(number)
    return current_worker(), list(kept)


def current_worker() -> str:
    """Returns a text that identifies a worker by its namespaces. All workers have the same process id."""
    return f"{os.readlink('/proc/self/ns/pid')} {os.readlink('/proc/self/ns/mnt')}"


def leave_memory(more: int) -> None:
    """Limits the address space as :func:`set_memory_limit` does, and fills the memory that malloc has already.

    Heaps of ended threads would be used otherwise: each has up to 64 MiB that the limit has counted before.
    """
    set_memory_limit(0)
    with suppress(MemoryError):
        while True:
            blocks.append(bytes(4 << 20))
    set_memory_limit(more)


def wait_and_keep(number: int) -> tuple[str, list[int]]:
    time.sleep(2)
    return keep(number)


def read_state() -> str:
    return state


def toss_a_coin() -> str:
    if os.urandom(1)[0] & 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "heads"


def log(number: int) -> None:
    logger = logging.getLogger("farfork.test")
    logger.debug("not enabled")
    logger.info("number %d", number, extra={"unpicklable": threading.Lock()})
    try:
        number // 0
    except ZeroDivisionError:
        logger.getChild("deep").exception("it failed")


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("one text")


def log_error() -> str:
    logging.getLogger("farfork.test").warning("odd", extra={"error": NeedsTwo(1, 2)})
    return "logged"


def log_in_signal_handler() -> str:
    logger = logging.getLogger("farfork.test")
    handled: list[int] = []

    def log_and_count(*_: object) -> None:
        logger.warning("handler")
        handled.append(1)

    signal.signal(signal.SIGVTALRM, log_and_count)
    # The timer counts CPU time. So even on a slow machine, the next signal does not interrupt a handler.
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)
    while len(handled) < 30:
        logger.warning("call")
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "logged"


def define(text: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def answer(): return {text!r}", namespace)
    return namespace["answer"]


def print_and_sleep(text: str) -> None:
    print(text, flush=True)
    time.sleep(600)


def measure(table: list[bytes], lock: Any, number: int) -> tuple[int, int]:
    with lock:
        return len(table[0]), number


def executor(**options: Any) -> farfork.Executor:
    return farfork.Executor(nodes(), **options)


def wait_until_running(future: "farfork.ChildFuture[Any]") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not future.running():
        assert time.monotonic() < deadline, "the call does not begin"
        time.sleep(0.01)


def square_in_time(workers: farfork.Executor, number: int) -> int:
    """Repeats the call: on a busy machine even a short one may exceed its time limit."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return workers.submit(square, number).result(PATIENCE_S)
        except farfork.ChildTimeout:
            assert time.monotonic() < deadline, "no call ends in time"


class Workers(unittest.TestCase):
    def test_a_result_without_memory_fails_only_its_call(self) -> None:
        with executor(max_workers=2) as workers:
            list(workers.map(time.sleep, [0.2, 0.2]))
            with memory_limit(100 << 20):
                large, other = workers.submit(bytes, 200 << 20), workers.submit(wait_and_keep, 7)
                with self.assertRaises(farfork.OutOfMemory) as raised:
                    large.result(PATIENCE_S)
                self.assertEqual(other.result(PATIENCE_S)[1], [7])
            self.assertEqual((raised.exception.child, raised.exception.size >> 20), (large.child, 200))
            self.assertIn(f"child {large.child}: there is not enough memory", str(raised.exception))
            names = {future.child for future in [workers.submit(wait_and_keep, 8) for _ in range(2)] if future.result()}
            self.assertEqual(names, {large.child, other.child})

    def test_workers_are_listed_as_ended_by_their_executor(self) -> None:
        with executor(max_workers=1) as workers:
            future = workers.submit(current_worker)
            future.result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while (listed := [child for child in command("ps")["children"] if child["child"] == future.child])[0]["exit_code"] is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        # A worker may end by itself first, at the end of its channel.
        self.assertTrue(listed[0]["exit_code"] == 0 or listed[0]["ended_by_executor"], listed)

    def test_arguments_without_memory_fail_only_their_call(self) -> None:
        with executor(max_workers=1) as workers:
            workers.submit(leave_memory, 6 << 20).result(PATIENCE_S)
            large, following = workers.submit(len, bytes(12 << 20)), workers.submit(keep, 1)
            with self.assertRaisesRegex(farfork.OutOfMemory, "ulimit -v"):
                large.result(PATIENCE_S)
            self.assertEqual((following.result(PATIENCE_S)[1], following.child), ([1], large.child))

    def test_workers_run_many_calls_and_keep_their_state(self) -> None:
        with executor(max_workers=3) as workers:
            outcomes = list(workers.map(keep, range(30)))
            outcomes += list(workers.map(keep, range(30, 60)))
        by_worker: dict[str, list[int]] = {}
        for number, (worker, left) in enumerate(outcomes):
            by_worker.setdefault(worker, []).append(number)
            self.assertEqual(left, by_worker[worker])
        self.assertLessEqual(len(by_worker), 3)

    def test_workers_are_distributed_over_nodes_up_to_their_limit(self) -> None:
        with executor(max_workers=4) as workers:
            futures = [workers.submit(time.sleep, 0.05) for _ in range(24)]
            for future in futures:
                future.result(PATIENCE_S)
            children = {future.child for future in futures}
            self.assertLessEqual(len(children), 4)
            # On a busy machine two workers may do everything before the others begin.
            wide = [workers.submit(time.sleep, 600) for _ in range(4)]
            for future in wide:
                wait_until_running(future)
            self.assertEqual(Counter(future.node for future in wide), dict.fromkeys(nodes(), 2))
            for future in wide:
                future.cancel()

    def test_first_calls_and_unpicklable_calls_are_not_pickled(self) -> None:
        lock = threading.Lock()

        def look_up(number: int) -> tuple[str, bool]:
            return TABLE[number], lock.locked()

        with executor(max_workers=2) as workers:
            for first in (0, 1000):
                found = list(workers.map(look_up, range(first, first + 10)))
                self.assertEqual(found, [(TABLE[number], False) for number in range(first, first + 10)])

    def test_a_pickled_call_never_runs_another_definition(self) -> None:
        main = sys.modules["__main__"]
        with executor(max_workers=2) as workers:
            for text in ("first", "second"):
                namespace: dict[str, Any] = {"__name__": "__main__"}
                exec(f"def defined(): return {text!r}", namespace)
                setattr(main, "defined", namespace["defined"])
                try:
                    self.assertEqual(workers.submit(namespace["defined"]).result(PATIENCE_S), text)
                finally:
                    delattr(main, "defined")

    def test_workers_have_the_state_of_their_fork(self) -> None:
        global state
        before = state
        with executor(max_workers=1) as workers:
            self.assertEqual(workers.submit(read_state).result(PATIENCE_S), before)
            state = "changed"
            try:
                self.assertEqual(workers.submit(read_state).result(PATIENCE_S), before)
                # A call that needs a new seed sees the current state.
                self.assertEqual(workers.submit(lambda: read_state()).result(PATIENCE_S), "changed")
            finally:
                state = before

    def test_large_arguments_and_results_are_complete(self) -> None:
        with executor(max_workers=2) as workers:
            self.assertEqual(workers.submit(square, 2).result(PATIENCE_S), 4)
            for size in (1 << 20, 40 << 20):
                data = os.urandom(size)
                futures = [workers.submit(bytes.__add__, data, bytes([last])) for last in range(3)]
                for last, future in enumerate(futures):
                    self.assertEqual(future.result(PATIENCE_S), data + bytes([last]))

    def test_shared_objects_are_not_pickled(self) -> None:
        wait_for_no_seed()
        lock = threading.Lock()
        table = [bytes(32 << 20)]
        with executor(max_workers=2, shared=[table, lock]) as workers:
            calls = [workers.submit(measure, table, lock, number) for number in range(8)]
            self.assertEqual([call.result(PATIENCE_S) for call in calls], [(32 << 20, number) for number in range(8)])
            seeds = [seed for seed in command("seeds")["seeds"] if seed["parent_pid"] == os.getpid()]
        self.assertEqual(len(seeds), 1)

    def test_exceptions_keep_their_class_and_traceback(self) -> None:
        with executor(max_workers=2) as workers:
            for _ in range(2):
                with self.assertRaisesRegex(KeyError, "seventy-seven") as raised:
                    workers.submit(square, 77).result(PATIENCE_S)
                self.assertIsInstance(raised.exception.__cause__, RemoteTraceback)
                self.assertIn("in square", str(raised.exception.__cause__))
            outcomes = list(workers.map(square, range(75, 80), chunksize=2, return_exceptions=True))
            self.assertEqual([type(outcome) for outcome in outcomes], [int, int, KeyError, int, int])
            self.assertEqual(list(workers.map(square, range(40), chunksize=None)), [n * n for n in range(40)])

    def test_a_dead_worker_is_replaced(self) -> None:
        with executor(max_workers=2) as workers:
            self.assertEqual(workers.submit(square, 2).result(PATIENCE_S), 4)
            ends: list[tuple[Callable[[], Any], str]] = [
                (lambda: os._exit(3), "exit status 3"),
                (lambda: os._exit(0), "exit status 0"),
                (lambda: os.abort(), "SIGABRT"),
                (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
            ]
            for call, text in ends:
                with self.assertRaisesRegex(farfork.ChildDied, text):
                    workers.submit(call).result(PATIENCE_S)
                self.assertEqual(list(workers.map(square, range(6))), [0, 1, 4, 9, 16, 25])
            # Kill a worker from outside while it runs a call.
            future = workers.submit(time.sleep, 600)
            wait_until_running(future)
            command("kill", "--signal", "KILL", str(future.child))
            with self.assertRaisesRegex(farfork.ChildDied, "SIGKILL"):
                future.result(PATIENCE_S)
            self.assertEqual(list(workers.map(square, range(6))), [0, 1, 4, 9, 16, 25])

    def test_a_call_may_be_retried(self) -> None:
        with executor(max_workers=2, retries=30) as workers:
            outcomes = [workers.submit(toss_a_coin) for _ in range(8)]
            self.assertEqual([outcome.result(PATIENCE_S) for outcome in outcomes], ["heads"] * 8)
        with executor(max_workers=1, retries=2) as workers:
            with self.assertRaisesRegex(farfork.ChildDied, "exit status 4"):
                workers.submit(os._exit, 4).result(PATIENCE_S)
        with self.assertRaises(ValueError):
            executor(retries=1, reuse_workers=False)

    def test_a_call_that_takes_too_long_ends_with_its_worker(self) -> None:
        with executor(max_workers=2, timeout=3) as workers:
            # The first call runs in a worker that is forked for it. The second call runs in a worker that was idle.
            for number in range(2):
                with self.assertRaisesRegex(farfork.ChildTimeout, "more than 3 s"):
                    workers.submit(time.sleep, 600).result(PATIENCE_S)
                self.assertEqual(square_in_time(workers, number), number * number)

    def test_the_log_of_a_call_that_takes_too_long_is_kept(self) -> None:
        with executor(max_workers=1, timeout=3, output="log") as workers:
            with self.assertRaises(farfork.ChildTimeout) as raised:
                workers.submit(print_and_sleep, "before the timeout").result(PATIENCE_S)
        line = [farfork.binary(), "logs", raised.exception.child]
        log = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertIn("before the timeout", log.stdout, log.stderr)

    def test_a_cancelled_call_does_not_start_or_its_worker_is_killed(self) -> None:
        with executor(max_workers=1) as workers:
            running, queued = workers.submit(time.sleep, 600), workers.submit(square, 3)
            wait_until_running(running)
            self.assertTrue(queued.cancel())
            self.assertIsNone(queued.child)
            self.assertTrue(running.cancel())
            self.assertIn(running, wait([running], PATIENCE_S, FIRST_COMPLETED).done)
            with self.assertRaises(CancelledError):
                running.result(0)
            self.assertEqual(workers.submit(square, 4).result(PATIENCE_S), 16)
        self.assertNotIn(running.child, [child["child"] for child in command("ps", "--running")["children"]])

    def test_each_worker_is_initialized(self) -> None:
        def initialize(first: int, second: int) -> None:
            kept.extend([first, second])

        with executor(max_workers=2, initializer=initialize, initargs=(7, 8)) as workers:
            self.assertEqual({tuple(left[:2]) for _, left in workers.map(keep, range(8))}, {(7, 8)})
        self.assertEqual(kept, [])

    def test_an_initializer_that_raises_breaks_the_executor(self) -> None:
        def initialize() -> None:
            raise LookupError("no model")

        with executor(max_workers=2, initializer=initialize) as workers:
            future = workers.submit(square, 2)
            with self.assertRaisesRegex(farfork.InitializerFailed, "initializer raised") as raised:
                future.result(PATIENCE_S)
            self.assertIsInstance(raised.exception, BrokenExecutor)
            self.assertEqual(repr(raised.exception.__cause__), "LookupError('no model')")
            with self.assertRaises(farfork.InitializerFailed):
                workers.submit(square, 2)

    def test_an_unknown_node_is_an_error_of_each_call(self) -> None:
        with farfork.Executor([nodes()[0], "nowhere"], max_workers=2) as workers:
            outcomes = list(workers.map(square, range(3), return_exceptions=True))
            self.assertEqual([type(outcome) for outcome in outcomes], [farfork.ChildNotStarted] * 3)
            with self.assertRaisesRegex(farfork.ChildNotStarted, "nowhere"):
                workers.submit(square, 1).result(PATIENCE_S)

    def test_workers_have_limits(self) -> None:
        with executor(max_workers=1, memory="256MiB") as workers:
            self.assertEqual(len(workers.submit(os.urandom, 1 << 20).result(PATIENCE_S)), 1 << 20)
            with self.assertRaises(farfork.ChildDied) as raised:
                workers.submit(os.urandom, 512 << 20).result(PATIENCE_S)
            self.assertEqual(raised.exception.limit, "memory")
            self.assertEqual(workers.submit(square, 3).result(PATIENCE_S), 9)
        with self.assertRaisesRegex(ValueError, "not a size"):
            executor(memory="512 apples")

    def test_executors_in_workers_are_refused(self) -> None:
        def nested() -> None:
            with farfork.Executor() as inner:
                inner.submit(square, 2).result()

        with executor(max_workers=1) as workers:
            for call in (nested, lambda: workers.submit(square, 2).result(), nested):
                with self.assertRaisesRegex(farfork.DaemonNotFound, "cannot be forked further"):
                    workers.submit(call).result(PATIENCE_S)

    def test_maps_of_nothing_return_in_threads_of_workers(self) -> None:
        results: list[list[int]] = []

        def map_nothing(used: farfork.Executor) -> None:
            results.append(list(used.map(square, [])))

        def map_in_threads() -> list[list[int]]:
            for used in (workers, farfork.Executor()):
                thread = threading.Thread(target=map_nothing, args=(used,))
                thread.start()
                thread.join(PATIENCE_S / 5)
            return results

        with executor(max_workers=1) as workers:
            self.assertEqual(workers.submit(map_in_threads).result(PATIENCE_S), [[], []])
        with self.assertRaisesRegex(RuntimeError, "after shutdown"):
            workers.map(square, [])

    def test_an_argument_may_be_changed_after_submit(self) -> None:
        with executor(max_workers=2) as workers:
            self.assertEqual(workers.submit(square, 2).result(PATIENCE_S), 4)
            for number in range(10):
                data = bytearray([number]) * (1 << 20)
                future = workers.submit(set, data)
                data[:] = b"x" * len(data)
                self.assertEqual(future.result(PATIENCE_S), {number})

    def test_output_is_printed_while_calls_run(self) -> None:
        def talk(number: int) -> int:
            print("line", number)
            print("error", number, file=sys.stderr, flush=True)
            os.write(1, b"raw\n")
            return number

        texts = {}
        for mode in ("tagged", "plain", "log"):
            with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
                with executor(max_workers=1, output=mode) as workers:
                    future = workers.submit(talk, 7)
                    self.assertEqual(future.result(PATIENCE_S), 7)
                texts[mode] = (stdout.getvalue().splitlines(), stderr.getvalue().splitlines())
            name = f"[{future.child}] " if mode == "tagged" else ""
            expected = [f"{name}line 7", f"{name}raw"], [f"{name}error 7"]
            if mode == "log":
                expected = [], []
            self.assertEqual((sorted(texts[mode][0]), texts[mode][1]), expected)

    def test_records_are_handled_by_the_loggers_of_the_program(self) -> None:
        with self.assertLogs("farfork.test") as caught, executor(max_workers=1) as workers:
            workers.submit(log, 1).result(PATIENCE_S)
            call = workers.submit(log, 2)
            call.result(PATIENCE_S)
        said = [(record.name, record.levelname, record.getMessage().splitlines()[0]) for record in caught.records]
        of_a_call = [("farfork.test", "INFO", "number {}"), ("farfork.test.deep", "ERROR", "it failed")]
        expected = [(name, level, text.format(number)) for number in (1, 2) for name, level, text in of_a_call]
        self.assertEqual(said, expected)
        self.assertIn("ZeroDivisionError", caught.records[3].getMessage())
        self.assertEqual(getattr(caught.records[3], "worker"), call.child)

    def test_a_record_that_cannot_be_unpickled_ends_no_call(self) -> None:
        with redirect_stderr(io.StringIO()) as said, executor(max_workers=1) as workers:
            self.assertEqual(workers.submit(log_error).result(PATIENCE_S), "logged")
        # The program has no handler for the record, so `logging` prints the message.
        self.assertEqual(said.getvalue(), "odd\n")

    def test_nested_logging_does_not_deadlock(self) -> None:
        with redirect_stderr(io.StringIO()), executor(max_workers=1) as workers:
            self.assertEqual(workers.submit(log_in_signal_handler).result(PATIENCE_S), "logged")

    def test_a_call_that_waits_runs_the_definition_of_its_submission(self) -> None:
        main = sys.modules["__main__"]
        try:
            with executor(max_workers=1) as workers:
                setattr(main, "answer", define("old"))
                workers.submit(getattr(main, "answer")).result(PATIENCE_S)
                calls = [workers.submit(time.sleep, 1), *(workers.submit(getattr(main, "answer")) for _ in range(3))]
                setattr(main, "answer", define("new"))
                calls.append(workers.submit(getattr(main, "answer")))
                self.assertEqual([call.result(PATIENCE_S) for call in calls], [None, "old", "old", "old", "new"])
        finally:
            delattr(main, "answer")

    def test_a_process_forked_by_a_call_runs_no_other_calls(self) -> None:
        def fork_both() -> int:
            os.fork()
            return os.getpid()

        with executor(max_workers=1) as workers:
            # From now on, one of the two processes may continue as the worker, or neither.
            workers.submit(fork_both).exception(PATIENCE_S)
            outcomes = [workers.submit(square, number) for number in range(20)]
            for number, outcome in enumerate(outcomes):
                if outcome.exception(PATIENCE_S) is None:
                    self.assertEqual(outcome.result(0), number * number)

    def test_the_program_waits_for_its_calls_at_its_end(self) -> None:
        program = (
            "import farfork, sys, time\n"
            "workers = farfork.Executor(sys.argv[1:], max_workers=1)\n"
            "for number in range(4):\n"
            "    future = workers.submit(pow, number, 2)\n"
            "    future.add_done_callback(lambda done: print(done.result(), flush=True))\n"
        )
        line = [sys.executable, "-c", program, *nodes()]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((ended.stdout.split(), ended.returncode), (["0", "1", "4", "9"], 0), ended.stderr)

    def test_executors_do_not_disturb_the_checkpoints_of_others(self) -> None:
        with executor(max_workers=2) as first, executor(reuse_workers=False) as second:
            for number in range(15):
                futures = [first.submit(lambda: square(number)) for _ in range(2)]
                futures += [second.submit(square, number) for _ in range(2)]
                self.assertEqual([future.result(PATIENCE_S) for future in futures], [number * number] * 4)

    def test_threads_and_callbacks_may_submit(self) -> None:
        with executor(max_workers=3) as workers:
            results: list[int] = []

            def submit(first: int) -> None:
                futures = [workers.submit(square, first + number) for number in range(20)]
                results.extend(future.result(PATIENCE_S) for future in as_completed(futures, PATIENCE_S))

            threads = [threading.Thread(target=submit, args=(first,)) for first in (100, 200, 300)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            self.assertEqual(sorted(results), [n * n for first in (100, 200, 300) for n in range(first, first + 20)])
            called: list[Any] = []
            done = threading.Event()

            def call_again(future: Any) -> None:
                called.append(workers.submit(square, future.result()))
                done.set()

            workers.submit(square, 3).add_done_callback(call_again)
            self.assertTrue(done.wait(PATIENCE_S))
            self.assertEqual(called[0].result(PATIENCE_S), 81)

    def test_shutdown_runs_or_cancels_submitted_calls(self) -> None:
        workers = executor(max_workers=1)
        futures = [workers.submit(time.sleep, 0.2) for _ in range(4)]
        workers.shutdown(wait=False)
        with self.assertRaises(RuntimeError):
            workers.submit(square, 1)
        self.assertEqual([future.result(PATIENCE_S) for future in futures], [None] * 4)
        workers = executor(max_workers=1)
        futures = [workers.submit(time.sleep, 600) for _ in range(4)]
        wait_until_running(futures[0])
        workers.shutdown(wait=False, cancel_futures=True)
        self.assertEqual([future.cancelled() for future in futures], [False, True, True, True])
        futures[0].cancel()
        workers.shutdown()

    def test_a_forked_process_has_its_own_workers(self) -> None:
        with executor(max_workers=1) as workers:
            running = workers.submit(time.sleep, 1)
            wait_until_running(running)
            forked = Forked(lambda: str(workers.submit(os.getpid).result(PATIENCE_S)))
            self.assertEqual(forked.text(), str(forked.pid))
            # The process and its end do not affect the workers of this one.
            self.assertIsNone(running.result(PATIENCE_S))
            future = workers.submit(os.getpid)
            self.assertEqual((future.result(PATIENCE_S), future.child), (os.getpid(), running.child))

    def test_an_ended_executor_leaves_nothing(self) -> None:
        with executor(max_workers=3) as workers:
            futures = [workers.submit(square, number) for number in range(9)]
            self.assertEqual([future.result(PATIENCE_S) for future in futures], [n * n for n in range(9)])
            # Makes a second seed, so that the first one is dropped.
            self.assertEqual(workers.submit(lambda: square(5)).result(PATIENCE_S), 25)
            ids = {future.child for future in futures}
        descriptors = set(os.listdir("/proc/self/fd"))
        deadline = time.monotonic() + PATIENCE_S
        left: list[Any] = [None]
        while left and time.monotonic() < deadline:
            seeds = [seed for seed in command("seeds")["seeds"] if seed["parent_pid"] == os.getpid()]
            left = seeds + [child for child in command("ps", "--running")["children"] if child["child"] in ids]
        self.assertEqual(left, [])
        with executor(max_workers=3) as workers:
            self.assertEqual(list(workers.map(square, range(9))), [n * n for n in range(9)])
        self.assertEqual(set(os.listdir("/proc/self/fd")), descriptors)
