"""Tests signals and timers: workers do not inherit them, and an interrupt leaves a usable executor."""

import signal
import subprocess
import sys
import threading
import time
import unittest

import farfork

from . import PATIENCE_S, nodes

#: A program whose timer expires every millisecond, also in a child. In a child, the handler raises an exception.
RAISING_TIMER = """
import farfork, signal, sys
from farfork import _connection

class TooLong(Exception): pass

def handle(*_):
    if _connection.child_id is not None:
        raise TooLong

signal.signal(signal.SIGALRM, handle)
for reuse_workers in (True, False):
    executor = farfork.Executor(sys.argv[1:], max_workers=1, reuse_workers=reuse_workers)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        future = executor.submit(lambda: 5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _connection.child_id is not None:
            print("a child has left submit()", flush=True)
    print(future.result(60), flush=True)
    executor.abort()
"""

#: A program whose first submit is interrupted when the function `name` of the executor returns.
INTERRUPTED_SUBMIT = """
import farfork, signal, sys
from farfork import _connection
name, reuse_workers, *nodes = sys.argv[1:]

def interrupt(frame, event, _):
    if event == "return" and frame.f_code.co_name == name and _connection.child_id is None:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

executor = farfork.Executor(nodes, max_workers=1, reuse_workers=reuse_workers == "True")
try:
    sys.setprofile(interrupt)
    executor.submit(len, "ab")
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.setprofile(None)
print(executor.submit(len, "abc").result(60), flush=True)
executor.shutdown()
"""

#: A program that interrupts a cancel after its first step: the future is cancelled, but its child is not killed yet.
INTERRUPTED_CANCEL = """
import farfork, signal, sys, time
end, reuse_workers, *nodes = sys.argv[1:]

def interrupt(frame, event, _):
    if event == "return" and frame.f_code.co_name == "notify_all":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

executor = farfork.Executor(nodes, max_workers=1, reuse_workers=reuse_workers == "True")
future = executor.submit(time.sleep, 3600)
while not future.running():
    time.sleep(0.01)
try:
    sys.setprofile(interrupt)
    future.cancel()
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.setprofile(None)
getattr(executor, end)()
print("cancelled" if future.cancelled() else "not cancelled", flush=True)
"""

#: A program that interrupts `wait` while it has locked the first of its futures. The future stays locked.
INTERRUPTED_WAIT = """
import concurrent.futures, farfork, signal, sys, time
reuse_workers, *nodes = sys.argv[1:]

def interrupt(frame, event, function):
    if event == "c_return" and function.__name__ == "acquire" and frame.f_code.co_name == "__enter__":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

executor = farfork.Executor(nodes, max_workers=1, reuse_workers=reuse_workers == "True")
futures = [executor.submit(time.sleep, 0.5) for _ in range(2)]
try:
    sys.setprofile(interrupt)
    concurrent.futures.wait(futures)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.setprofile(None)
executor.shutdown()
print([future.result() for future in futures], flush=True)
"""


def run_program(program: str, *arguments: str) -> tuple[list[str], int, str]:
    """The lines, the exit status and the errors of a program."""
    line = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    return ended.stdout.split("\n")[:-1], ended.returncode, ended.stderr


def running_timers() -> list[int]:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return [int(timer) for timer in timers if signal.getitimer(timer)[0] > 0]


class Inherited(unittest.TestCase):
    def test_workers_have_no_timers_of_the_program(self) -> None:
        timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        for timer in timers:
            self.addCleanup(signal.setitimer, timer, 0)
            signal.setitimer(timer, 3600)
        for reuse_workers in (True, False):
            with farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers) as executor:
                self.assertEqual(executor.submit(running_timers).result(PATIENCE_S), [])
        # The program keeps its timers.
        self.assertEqual(running_timers(), [int(timer) for timer in timers])

    def test_workers_have_no_pending_signals_of_the_program(self) -> None:
        numbers = {signal.SIGINT, signal.SIGUSR1}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            for number in numbers:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            for reuse_workers in (True, False):
                with farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers) as executor:
                    pending = executor.submit(lambda: set(signal.sigpending())).result(PATIENCE_S)
                self.assertEqual((pending, signal.sigpending()), (set(), numbers))
        finally:
            while pending := signal.sigpending() & numbers:
                signal.sigtimedwait(pending, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def test_a_handler_that_raises_does_not_let_a_child_leave_submit(self) -> None:
        lines, status, errors = run_program(RAISING_TIMER, *nodes())
        self.assertEqual((lines, status), (["5", "5"], 0), errors)


class Interrupts(unittest.TestCase):
    def test_an_interrupted_submit_leaves_a_usable_executor(self) -> None:
        for name, reuse_workers in (
            ("make_seed", True),
            ("_connect", True),
            ("start_workers", True),
            ("start_batch", False),
        ):
            with self.subTest(name=name):
                lines, status, errors = run_program(INTERRUPTED_SUBMIT, name, str(reuse_workers), *nodes())
                self.assertEqual((lines, status), (["interrupted", "3"], 0), errors)

    def test_an_interrupted_cancel_is_completed_by_the_next_one_or_by_the_shutdown(self) -> None:
        for reuse_workers in (True, False):
            for end in ("abort", "shutdown"):
                with self.subTest(reuse_workers=reuse_workers, end=end):
                    lines, status, errors = run_program(INTERRUPTED_CANCEL, end, str(reuse_workers), *nodes())
                    self.assertEqual((lines, status), (["interrupted", "cancelled"], 0), errors)

    def test_an_interrupted_wait_does_not_block_the_shutdown(self) -> None:
        for reuse_workers in (True, False):
            with self.subTest(reuse_workers=reuse_workers):
                lines, status, errors = run_program(INTERRUPTED_WAIT, str(reuse_workers), *nodes())
                self.assertEqual((lines, status), (["interrupted", "[None, None]"], 0), errors)

    def test_a_callback_of_a_cancelled_future_may_shut_the_executor_down(self) -> None:
        for reuse_workers in (True, False):
            executor = farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers)
            future = executor.submit(time.sleep, 3600)
            deadline = time.monotonic() + PATIENCE_S
            while not future.running():
                self.assertLess(time.monotonic(), deadline, "the call does not begin")
                time.sleep(0.01)
            future.add_done_callback(lambda _: executor.shutdown(cancel_futures=True))
            thread = threading.Thread(target=future.cancel, daemon=True)
            thread.start()
            thread.join(PATIENCE_S)
            self.assertFalse(thread.is_alive(), "cancel waits for the call")


if __name__ == "__main__":
    unittest.main()
