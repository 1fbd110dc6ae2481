"""Tests that copies of the program's threads do not disturb workers, and that calls may start their own threads."""

import _thread
import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, Callable
from unittest.mock import patch

import farfork
from farfork import _checkpoint_lock

from . import PATIENCE_S, nodes

#: Number of executors that each thread makes.
ROUNDS = 4

THREADS = 3


#: A program whose main thread ends in a worker, before the worker's call starts a thread.
ENDING_MAIN = """
import atexit, farfork, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from farfork import _connection

def call():
    while not has_ended:
        time.sleep(0.01)
    time.sleep(0.3)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(abs, -5).result()

def use_executor():
    with farfork.Executor(sys.argv[1:], max_workers=1) as executor:
        print(executor.submit(call).result(60), flush=True)

atexit.register(print, "the program ends")
has_ended = []
thread = threading.Thread(target=use_executor)
thread.start()
while thread.is_alive() and _connection.child_id is None:
    time.sleep(0.01)
has_ended.append(True)
"""


def add_with_executor(node_names: list[str], first: int, **options: Any) -> list[int]:
    """Makes an executor and calls functions of a local variable, so its workers must be forked during this call."""
    with farfork.Executor(node_names, max_workers=1, **options) as executor:
        return list(executor.map(lambda number: first + number, range(2), timeout=PATIENCE_S))


def error_name(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()}"
    except Exception as error:
        return type(error).__name__


def use_farfork(executor: farfork.Executor) -> set[str]:
    """Returns the names of the errors that a call gets when it uses farfork."""
    calls: list[Callable[[], object]] = [
        lambda: executor.submit(len, "text"),
        lambda: farfork.Executor().submit(len, "text"),
        farfork.branch,
        farfork.checkpoint,
    ]
    return {error_name(call) for call in calls}


def use_farfork_in_threads(executor: farfork.Executor) -> set[str]:
    """Returns the errors of :func:`use_farfork` in the thread of the call, in threads that it starts, and in threads that
    these start. One thread is not started by :mod:`threading`.
    """
    errors = use_farfork(executor)

    def use_in_two_threads() -> None:
        inner = threading.Thread(target=lambda: errors.update(use_farfork(executor)))
        inner.start()
        inner.join()
        errors.update(use_farfork(executor))

    asyncio.run(asyncio.to_thread(use_in_two_threads))
    has_ended = threading.Event()

    def use_in_two_native_threads() -> None:
        use_in_two_threads()
        has_ended.set()

    _thread.start_new_thread(use_in_two_native_threads, ())
    if not has_ended.wait(PATIENCE_S / 5):
        errors.add("the threads hang")
    return errors


def exit_status_in_native_thread() -> int:
    """Forks in a thread that is not started by :mod:`threading`. Returns the exit status of the copy, which uses farfork."""
    has_status = threading.Event()
    statuses: list[int] = []

    def fork_and_wait() -> None:
        if (pid := os.fork()) == 0:
            os._exit(42 if error_name(farfork.branch) == "DaemonNotFound" else 1)
        deadline = time.monotonic() + PATIENCE_S / 3
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
        statuses.append(os.waitstatus_to_exitcode(ended[1]))
        has_status.set()

    _thread.start_new_thread(fork_and_wait, ())
    has_status.wait(PATIENCE_S / 2)
    return statuses[0]


def processor_time_s() -> float:
    begin = time.process_time()
    time.sleep(1)
    return time.process_time() - begin


class CopiedThreads(unittest.TestCase):
    def setUp(self) -> None:
        self.nodes = nodes()
        # Workers print the tracebacks of their threads.
        self.output = StringIO()
        for redirect in (redirect_stdout(self.output), redirect_stderr(self.output)):
            redirect.__enter__()
            self.addCleanup(redirect.__exit__, None, None, None)

    def test_executors_of_several_threads_do_not_disturb_each_other(self) -> None:
        for reuse_workers, starts_native in ((True, False), (False, False), (True, True)):
            results: list[Any] = []
            ended = threading.Semaphore(0)

            def add_again() -> None:
                for number in range(ROUNDS):
                    try:
                        results.append(add_with_executor(self.nodes, number, reuse_workers=reuse_workers))
                    except farfork.Error as error:
                        results.append(error)
                        print("a thread gets", error)
                ended.release()

            for _ in range(THREADS):
                if starts_native:
                    _thread.start_new_thread(add_again, ())
                else:
                    threading.Thread(target=add_again).start()
            for _ in range(THREADS):
                self.assertTrue(ended.acquire(timeout=PATIENCE_S))
            expected = sorted([number, number + 1] for number in range(ROUNDS)) * THREADS
            self.assertCountEqual(results, expected)
        self.assertEqual(self.output.getvalue(), "")

    def test_event_loops_may_use_executors_in_threads(self) -> None:
        async def add_all() -> list[list[int]]:
            return await asyncio.gather(*(asyncio.to_thread(add_with_executor, self.nodes, number) for number in range(THREADS)))

        self.assertEqual(asyncio.run(add_all()), [[number, number + 1] for number in range(THREADS)])
        self.assertEqual(self.output.getvalue(), "")

    def test_workers_do_not_repeat_callbacks_of_other_executors(self) -> None:
        callbacks_begun = threading.Event()
        effects: list[int] = []

        def have_slow_effect(_: object) -> None:
            callbacks_begun.set()
            time.sleep(0.1)
            effects.append(1)

        def count_new_effects() -> int:
            count = len(effects)
            time.sleep(1)
            return len(effects) - count

        # On a busy machine, a callback may take longer than a fork usually waits for it.
        wait = patch.object(_checkpoint_lock, "_WAIT_S_MAX", PATIENCE_S)
        executors = [farfork.Executor(self.nodes, max_workers=1) for _ in range(2)]
        with wait, executors[0] as first, executors[1] as second:
            future = first.submit(time.sleep, 0.5)
            for _ in range(5):
                future.add_done_callback(have_slow_effect)
            self.assertTrue(callbacks_begun.wait(PATIENCE_S))
            self.assertEqual(second.submit(count_new_effects).result(PATIENCE_S), 0)
        self.assertEqual(len(effects), 5)

    def test_the_last_callback_of_an_executor_may_fork(self) -> None:
        results: "queue.Queue[object]" = queue.Queue()

        def start_next(future: Any) -> None:
            try:
                with farfork.Executor(self.nodes, max_workers=1) as following:
                    results.put(following.submit(lambda: future.result() + 1).result(PATIENCE_S))
            except Exception as error:
                results.put(error)

        for reuse_workers in (True, False):
            with farfork.Executor(self.nodes, max_workers=1, reuse_workers=reuse_workers) as first:
                first.submit(lambda: 5).add_done_callback(start_next)
            self.assertEqual(results.get(timeout=PATIENCE_S), 6)

    def test_a_process_that_a_callback_forks_ends_when_the_callback_returns(self) -> None:
        pids: "queue.Queue[int]" = queue.Queue()
        with farfork.Executor(self.nodes, max_workers=1) as executor:
            executor.submit(abs, 1).add_done_callback(lambda _: pids.put(os.fork()))
            pid = pids.get(timeout=PATIENCE_S)
            self.assertEqual(os.waitpid(pid, 0), (pid, 0))

    def test_callbacks_of_several_executors_may_fork_at_the_same_time(self) -> None:
        results: "queue.Queue[object]" = queue.Queue()
        executors = [farfork.Executor(self.nodes, max_workers=4, reuse_workers=False) for _ in range(2)]

        def submit_to_all(future: Any) -> None:
            for executor in executors:
                try:
                    executor.submit(len, "x" * future.result()).add_done_callback(lambda ended: results.put(ended.result()))
                except Exception as error:
                    results.put(error)

        for executor in executors:
            for number in (1, 2):
                executor.submit(abs, number).add_done_callback(submit_to_all)
        self.assertCountEqual([results.get(timeout=PATIENCE_S) for _ in range(8)], [1, 2] * 4)
        for executor in executors:
            executor.shutdown()

    def test_they_stand_still_and_threads_of_calls_get_errors(self) -> None:
        is_over = False

        def submit_until_the_end() -> None:
            while not is_over:
                add_with_executor(self.nodes, 1)

        thread = threading.Thread(target=submit_until_the_end)
        thread.start()
        try:
            with farfork.Executor(self.nodes, max_workers=1) as executor:
                self.assertEqual(executor.submit(use_farfork_in_threads, executor).result(PATIENCE_S), {"DaemonNotFound"})
                self.assertLess(executor.submit(processor_time_s).result(PATIENCE_S), 0.5)
        finally:
            is_over = True
            thread.join(PATIENCE_S)
        self.assertEqual(self.output.getvalue(), "")

    def test_a_copy_of_the_main_thread_that_ends_does_not_end_its_worker(self) -> None:
        line = [sys.executable, "-c", ENDING_MAIN, *self.nodes]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((ended.stdout, ended.returncode), ("5\nthe program ends\n", 0), ended.stderr)

    def test_a_process_that_a_native_thread_of_a_call_forks_gets_errors(self) -> None:
        with farfork.Executor(self.nodes, max_workers=1) as executor:
            self.assertEqual(executor.submit(exit_status_in_native_thread).result(PATIENCE_S), 42)


if __name__ == "__main__":
    unittest.main()
