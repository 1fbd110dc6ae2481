"""The lock of checkpoints, and the completions that must not run during one.

A completion prints output of a worker, handles its log record, or completes a future and calls its callbacks. Workers have
copies of the threads that run completions. If a worker were forked during a completion, a copy would do the rest a second
time.
"""

from __future__ import annotations

import threading
import time
import weakref
from functools import wraps
from typing import Callable, ParamSpec, TypeVar

from ._copied_threads import refuse_copied_thread

P = ParamSpec("P")
T = TypeVar("T")

#: Held during a checkpoint, and while another thread of this package opens or closes files: a capture fails if the open
#: files change. In a child, the thread that holds the lock continues as in the parent, and releases the lock.
checkpoint_lock = threading.RLock()

#: Completes a future, or shows output of a worker. Called without the collector's lock, because a callback may wait for a
#: thread that needs it.
Completion = Callable[[], None]

#: Limit on the wait of a checkpoint, in seconds. A callback may wait for the thread that makes the checkpoint.
_WAIT_S_MAX = 1.0


class CompletionRunner:
    """Runs the completions of one thread."""

    def __init__(self) -> None:
        #: Held while a completion runs.
        self._lock = threading.Lock()
        with checkpoint_lock:
            _runners.add(self)

    def run(self, completions: list[Completion]) -> None:
        """Runs completions. Raises :class:`CopiedThread` in a worker."""
        for complete in completions:
            self.begin()
            try:
                complete()
            finally:
                self.end()

    def begin(self) -> None:
        # Waits for a checkpoint that is being made.
        with checkpoint_lock:
            refuse_copied_thread()
            self._lock.acquire()
        _own.runner = self

    def end(self) -> None:
        _own.runner = None
        self._lock.release()

    def wait(self, end: float) -> None:
        """Waits until no completion runs, or until a time on the monotonic clock."""
        if self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            self._lock.release()


class _Own(threading.local):
    #: The runner of this thread, while a completion runs.
    runner: CompletionRunner | None = None


_own = _Own()

#: The runners of this process.
_runners: weakref.WeakSet[CompletionRunner] = weakref.WeakSet()


def wait_for_completions() -> None:
    """Called before a checkpoint, with its lock held: waits until other threads run no completion."""
    end = time.monotonic() + _WAIT_S_MAX
    for runner in list(_runners):
        runner.wait(end)


def outside_completions(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions from which copied threads do not return. A checkpoint does not wait for a callback that
    calls the function: the callback may itself wait for the checkpoint.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        runner = _own.runner
        if runner is None:
            return function(*args, **kwargs)
        runner.end()
        try:
            return function(*args, **kwargs)
        finally:
            runner.begin()

    return call


def reset_after_fork() -> None:
    """Resets a process that os.fork made. It lacks the threads that held the locks."""
    checkpoint_lock._at_fork_reinit()  # type: ignore[attr-defined]
    _runners.clear()
