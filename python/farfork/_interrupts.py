"""Interrupts of calls in a worker: the executor sends a frame, and the call raises :class:`KeyboardInterrupt`."""

from __future__ import annotations

import select
import signal
import threading
import time
from types import FrameType
from typing import Callable, TypeVar

T = TypeVar("T")

#: Between two looks at whether the call still runs, in seconds.
_INTERVAL_S = 0.1


class CallInterrupts:
    """Made by the main thread, which runs the calls: signal handlers run there.

    While a call runs, the executor sends nothing but an interrupt. A thread waits for it, and the main thread receives it
    after the call.
    """

    def __init__(self, channel_fd: int) -> None:
        self._channel_fd = channel_fd
        #: The latest call, the one that runs (or 0), and the latest one that was interrupted.
        self._latest = self._running = self._interrupted = 0
        self._may_raise = False
        self._begun = threading.Event()
        signal.signal(signal.SIGINT, self._handle_signal)
        threading.Thread(target=self._watch, name="farfork-interrupts", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call that gives its exceptions as a value, interrupts included."""
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
            # Once for each call: what it does in answer is not interrupted again.
            self._may_raise = False
            raise KeyboardInterrupt

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._channel_fd, select.POLLIN)
        while True:
            self._begun.wait()
            number = self._running
            # If the same call runs before and after, what is there to be received is no other call.
            if number and poll.poll(_INTERVAL_S * 1000) and self._running == number:
                self._interrupted = number
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                while self._running == number:
                    time.sleep(_INTERVAL_S)
