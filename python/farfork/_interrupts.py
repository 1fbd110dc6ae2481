"""Interrupts of calls in a worker, which the executor sends as frames, and of the program, which a checkpoint delays."""

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


class HeldInterrupts:
    """Delays interrupts (SIGINT) while the program's handler must not raise: during a checkpoint.

    Only the main thread runs handlers. In another thread, or if Python does not handle the signal, this does nothing.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        #: The number of the signal, after one has arrived.
        self._held: int | None = None

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread() and callable(handler := signal.getsignal(signal.SIGINT)):
            self._handler = handler
            signal.signal(signal.SIGINT, self._hold)

    def end(self) -> None:
        """Restores the handler, also in a child."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def deliver(self) -> None:
        """Runs the handler for a delayed interrupt. Raises its exception."""
        if (number := self._held) is not None:
            self._held = None
            self._handler(number, sys._getframe())

    def _hold(self, number: int, _frame: FrameType | None) -> None:
        self._held = number


class CallInterrupts:
    """Created by the main thread, which runs the calls, because signal handlers run in it.

    While a call runs, the executor sends nothing but an interrupt. A thread waits for it, and the main thread receives it
    after the call.
    """

    def __init__(self, channel_fd: int) -> None:
        self._channel_fd = channel_fd
        #: The number of the latest call, of the running one (or 0), and of the latest interrupted one.
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
            # If the same call runs before and after, the pending frame is not another call.
            if number and poll.poll(_INTERVAL_S * 1000) and self._running == number:
                self._interrupted = number
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                while self._running == number:
                    time.sleep(_INTERVAL_S)
