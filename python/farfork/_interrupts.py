"""``CallInterrupts`` interrupts the calls of a worker, when the executor sends a frame. ``HeldSignals`` delays the program's
signals.
"""

from __future__ import annotations

import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, TypeVar

T = TypeVar("T")

#: Interval between two checks whether the call still runs, in seconds.
_INTERVAL_S = 0.1


class HeldSignals:
    """Delays signals while the program's handlers must not raise: during a checkpoint, and while a call is submitted.

    Only the main thread runs handlers, so in another thread this does nothing. Signals without a Python handler are not
    delayed. Two objects may be nested: the inner one delivers its signals to the outer one.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        #: Numbers of signals that have arrived and were not delivered.
        self._held: list[int] = []
        #: Handlers that are not restored yet.
        self._replaced: dict[int, Any] = {}
        #: The exception of a handler that ran while others were restored.
        self._raised: BaseException | None = None

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = self._replaced[number] = handler
                    signal.signal(number, self._hold)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Restores the handlers."""
        while self._replaced:
            number, handler = next(iter(self._replaced.items()))
            try:
                signal.signal(number, handler)
                del self._replaced[number]
            except BaseException as error:  # A handler that is restored already may raise.
                self._raised = error

    def drop(self) -> None:
        """Restores the handlers, and drops the delayed signals."""
        self.end()
        self._held.clear()
        self._raised = None

    def deliver(self) -> None:
        """Runs the handlers of delayed signals. Raises their exceptions."""
        if self._held:
            number = self._held.pop(0)
            try:
                self._handlers[number](number, sys._getframe())
            finally:
                self.deliver()
        if (raised := self._raised) is not None:
            self._raised = None
            raise raised

    def _hold(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._held:
            self._held.append(number)


def drop_inherited_signals() -> None:
    """In a new child: stops the program's timers and drops its pending signals, as fork(2) does."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    # Only blocked signals are pending. Others have run their handlers.
    while pending := signal.sigpending():
        signal.sigtimedwait(pending, 0)


class CallInterrupts:
    """Interrupts the calls of a worker by SIGINT. The main thread creates this object and runs the calls, because Python
    runs signal handlers in the main thread.

    While a call runs, the executor sends no frame but an interrupt. A second thread polls for this frame, and sends the
    signal. The main thread receives the frame after the call.
    """

    def __init__(self, channel_fd: int) -> None:
        self._channel_fd = channel_fd
        #: The numbers of the latest call, of the running call (or 0), and of the latest interrupted call.
        self._latest = self._running = self._interrupted = 0
        self._may_raise = False
        self._begun = threading.Event()
        signal.signal(signal.SIGINT, self._handle_signal)
        threading.Thread(target=self._watch, name="farfork-interrupts", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call that returns its exceptions as a value, including interrupts."""
        self._latest += 1
        self._running = self._latest
        self._begun.set()
        self._may_raise = True
        try:
            return call()
        finally:
            self._may_raise = False
            self._running = 0
            self._begun.clear()

    def _handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._may_raise and self._interrupted == self._latest:
            # Once per call: the code that handles the interrupt is not interrupted again.
            self._may_raise = False
            raise KeyboardInterrupt

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._channel_fd, select.POLLIN)
        while True:
            self._begun.wait()
            number = self._running
            # If the same call runs before and after the poll, the pending frame is an interrupt, not the next call.
            if number and poll.poll(_INTERVAL_S * 1000) and self._running == number:
                self._interrupted = number
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                while self._running == number:
                    time.sleep(_INTERVAL_S)
