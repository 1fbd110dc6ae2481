"""Tests that at-fork hooks are found, run in order, and do not affect running threads."""

import concurrent.futures.thread
import logging
import os
import subprocess
import sys
import threading
import unittest
from contextlib import redirect_stderr
from io import StringIO

from farfork import _hooks

calls: list[str] = []

os.register_at_fork(
    before=lambda: calls.append("before one"),
    after_in_parent=lambda: calls.append("parent one"),
    after_in_child=lambda: calls.append("child one"),
)
os.register_at_fork(
    before=lambda: calls.append("before two"),
    after_in_parent=lambda: calls.append("parent two"),
    after_in_child=lambda: calls.append("child two"),
)


class Hooks(unittest.TestCase):
    def setUp(self) -> None:
        calls.clear()

    def test_before_hooks_run_in_reverse_order(self) -> None:
        hooks = _hooks.AtFork()
        hooks.before()
        hooks.in_parent()
        self.assertEqual(calls, ["before two", "before one", "parent one", "parent two"])

    def test_child_hooks_run_in_order(self) -> None:
        hooks = _hooks.AtFork()
        hooks.before()
        hooks.in_child()
        self.assertEqual(calls, ["before two", "before one", "child one", "child two"])

    def test_threads_are_alive_in_a_child(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        hooks = _hooks.AtFork()
        hooks.before()
        hooks.in_child()
        self.assertTrue(thread.is_alive())
        stop.set()
        thread.join(5)
        self.assertFalse(thread.is_alive())

    def test_acquired_locks_are_released(self) -> None:
        hooks = _hooks.AtFork()
        for then in (hooks.in_parent, hooks.in_child):
            hooks.before()
            then()
            for lock in (logging._lock, concurrent.futures.thread._global_shutdown_lock):  # type: ignore[attr-defined]
                # If another thread can acquire the lock, it is free, and it is not a new lock.
                taken = threading.Thread(target=lambda: (lock.acquire(), lock.release()))
                taken.start()
                taken.join(5)
                self.assertFalse(taken.is_alive())

    def test_a_lock_that_another_thread_holds_stays_held(self) -> None:
        handler = logging.StreamHandler(StringIO())
        held, give_back = threading.Event(), threading.Event()

        def hold() -> None:
            with handler.lock:  # type: ignore[union-attr]
                held.set()
                give_back.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        hooks = _hooks.AtFork()
        hooks.before()
        hooks.in_child()
        self.assertFalse(handler.lock.acquire(blocking=False))  # type: ignore[union-attr]
        give_back.set()
        thread.join(5)
        handler.close()

    def test_an_exception_of_a_hook_is_reported_and_ignored(self) -> None:
        with redirect_stderr(StringIO()) as said:
            _hooks._run_hook(lambda: 1 / 0)
        self.assertIn("ZeroDivisionError", said.getvalue())

    def test_hooks_are_found_among_frozen_objects(self) -> None:
        program = (
            "import random, gc; gc.freeze(); from farfork import _hooks;"
            "print(len(_hooks._find_hook_lists()[2]) > 1, gc.get_freeze_count() > 1000)"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.split(), ["True", "True"])
