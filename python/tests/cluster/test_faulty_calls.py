"""Tests calls that fork their worker, and log records and exceptions that only the worker can unpickle."""

import logging
import os
import signal
import sys
import threading
import time
import types
import unittest
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any, Callable

import farfork
from farfork._errors import RemoteTraceback

from . import PATIENCE_S, nodes

#: Longest wait until a forked copy of a call has ended, in seconds. A copy that waits for a lock never ends.
COPY_S_MAX = PATIENCE_S / 5

#: The process id of the program and of its workers, but not of processes that workers fork.
PROGRAM_ID = os.getpid()

#: Time for which the program prints nothing, in seconds. In this time, a worker that has printed much forks.
SILENCE_S = 4.0


class SlowStream(StringIO):
    """A stream whose `write` waits until an event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.accepts = threading.Event()

    def write(self, text: str) -> int:
        self.accepts.wait(PATIENCE_S)
        return len(text)


def fork_while_output_is_sent() -> str:
    """Forks while another thread of the worker waits until the program accepts more output."""
    os.write(1, b"the program waits in this line\n")
    time.sleep(0.5)
    for _ in range(200):
        os.write(1, b"much output\n" * 5000)
    time.sleep(1)
    if (pid := os.fork()) == 0:
        raise ValueError("of the copy")
    deadline = time.monotonic() + COPY_S_MAX
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return "the copy has ended"
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "the copy hangs"


def log_object_of_the_worker() -> None:
    module: Any = types.ModuleType("only_in_the_worker")
    sys.modules["only_in_the_worker"] = module
    exec("class Value: pass", vars(module))
    logging.getLogger("farfork.test").warning("with %s", "an object", extra={"value": module.Value(), "number": 1})
    logging.getLogger("farfork.test").warning("with a number", extra={"number": 2})


def exit_status_of_copy(call: Callable[[], object]) -> Any:
    """Forks. Returns the exit status of the copy, which returns what ``call`` returns."""
    if (pid := os.fork()) == 0:
        return call()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_and_return(_: int) -> Any:
    """Returns the exit status of a copy that returns. A copy that runs another call ends with another status."""
    if os.getpid() != PROGRAM_ID:
        os._exit(7)
    return exit_status_of_copy(lambda: None)


class ReducedToDict(Exception):
    def __reduce__(self) -> Any:
        return dict, ()


def raise_odd() -> None:
    raise ReducedToDict("a text")


class FaultyCalls(unittest.TestCase):
    def test_a_forked_copy_ends_while_output_is_sent(self) -> None:
        stream, replaced = SlowStream(), sys.stdout
        timer = threading.Timer(SILENCE_S, stream.accepts.set)
        timer.start()
        sys.stdout = stream
        try:
            with farfork.Executor(nodes(), max_workers=1) as executor:
                outcome = executor.submit(fork_while_output_is_sent).result(PATIENCE_S)
        finally:
            sys.stdout = replaced
            timer.cancel()
        self.assertEqual(outcome, "the copy has ended")

    def test_a_forked_copy_that_raises_ends_like_a_process(self) -> None:
        endings: list[tuple[Callable[[], object], int]] = [
            (raise_odd, 1),
            (lambda: sys.exit(3), 3),
            (sys.exit, 0),
            (lambda: sys.exit(1 << 80), 255),
            (lambda: sys.exit("a reason"), 1),
        ]
        with redirect_stderr(StringIO()) as errors, farfork.Executor(nodes(), max_workers=1) as executor:
            for ending, status in endings:
                self.assertEqual(executor.submit(lambda: exit_status_of_copy(ending)).result(PATIENCE_S), status)
            self.assertEqual(list(executor.map(lambda _: exit_status_of_copy(raise_odd), [0], return_exceptions=True)), [1])
        for text in ("in raise_odd", "ReducedToDict: a text", "a reason"):
            self.assertIn(text, errors.getvalue())
        with farfork.Executor(nodes(), reuse_workers=False) as executor:
            self.assertEqual(executor.submit(exit_status_of_copy, raise_odd).result(PATIENCE_S), 1)

    def test_a_forked_copy_that_returns_ends_without_a_result(self) -> None:
        for reuse_workers in (True, False):
            with farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers) as executor:
                for result in (5, lambda: 5):
                    self.assertEqual(executor.submit(exit_status_of_copy, lambda: result).result(PATIENCE_S), 0)

    def test_a_forked_copy_runs_no_further_call_of_its_chunk(self) -> None:
        for return_exceptions in (True, False):
            with farfork.Executor(nodes(), max_workers=1) as executor:
                statuses = executor.map(fork_and_return, range(3), chunksize=3, return_exceptions=return_exceptions)
                self.assertEqual(list(statuses), [0] * 3)

    def test_a_process_that_an_initializer_forks_reports_its_exception_once(self) -> None:
        for ending, reports in ((raise_odd, 1), (sys.exit, 0)):
            with redirect_stderr(StringIO()) as errors:
                initializer = partial(exit_status_of_copy, ending)
                with farfork.Executor(nodes(), max_workers=1, initializer=initializer) as executor:
                    self.assertEqual(executor.submit(len, "text").result(PATIENCE_S), 4)
            self.assertEqual(errors.getvalue().count("Traceback"), reports, errors.getvalue())

    def test_a_record_is_logged_without_objects_that_only_the_worker_can_unpickle(self) -> None:
        with redirect_stderr(StringIO()) as errors, self.assertLogs("farfork.test") as caught:
            with farfork.Executor(nodes(), max_workers=1) as executor:
                executor.submit(log_object_of_the_worker).result(PATIENCE_S)
        messages = [(record.getMessage(), getattr(record, "number", None)) for record in caught.records]
        self.assertEqual((messages, errors.getvalue()), ([("with an object", None), ("with a number", 2)], ""))

    def test_an_exception_with_a_faulty_pickle_keeps_its_text_and_traceback(self) -> None:
        for reuse_workers in (True, False):
            with farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers) as executor:
                error = executor.submit(raise_odd).exception(PATIENCE_S)
            assert isinstance(error, RuntimeError), error
            self.assertIn("ReducedToDict: a text", str(error))
            self.assertIsInstance(error.__cause__, RemoteTraceback)
            self.assertIn("in raise_odd", str(error.__cause__))


if __name__ == "__main__":
    unittest.main()
