"""The threads of the program that continue in a worker.

One thread of the program makes the checkpoint, and runs the calls of the worker. The copies of the other threads continue
with the program's code, but they cannot use farfork: they stand still when they call it. So they neither end the worker nor
fail in it, and print nothing into the output of its calls.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from functools import wraps
from typing import Callable, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

#: In a worker: the thread that runs its calls, and all threads that this thread or its descendants have started. ``None`` in
#: other processes.
_own_threads: WeakSet[threading.Thread] | None = None

#: In a worker: the program's main thread.
_copied_main: threading.Thread | None = None

#: In a worker: the ids of copied threads that :mod:`threading` has not started.
_copied_native: frozenset[int] = frozenset()


class CopiedThread(BaseException):
    """Raised in a copied thread inside farfork. The thread stands still after it has released the locks."""


def begin_worker() -> None:
    """Called in a worker by the thread that made the checkpoint, while other threads wait for the lock of checkpoints."""
    global _own_threads, _copied_main, _copied_native
    own = _own_threads = WeakSet({threading.current_thread()})
    _copied_main = threading.main_thread()
    # The id of a thread may be used again after its end. Threads of `threading` are recognized without their ids.
    python_threads = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    _copied_native = frozenset(sys._current_frames()) - python_threads - {threading.get_ident()}
    start = threading.Thread.start

    @wraps(start)
    def start_as_parent(thread: threading.Thread) -> None:
        if not is_copied():
            own.add(thread)
        start(thread)

    threading.Thread.start = start_as_parent  # type: ignore[assignment, method-assign]
    # The interpreter calls this function at the end of the main thread. Its copy must not end the worker.
    threading._shutdown = copies_stand_still(threading._shutdown)  # type: ignore[attr-defined]


def is_copied() -> bool:
    """Whether this is a copied thread in a worker, or was started by a copied thread."""
    if _own_threads is None:
        return False
    thread = threading.current_thread()
    if thread in _own_threads:
        return False
    # After os.fork in a native thread, that thread is a new main thread.
    is_new_main = isinstance(thread, threading._MainThread) and thread is not _copied_main  # type: ignore[attr-defined]
    if isinstance(thread, threading._DummyThread) or is_new_main:
        # It is unknown which thread has started a native thread after the fork. Treat such a thread as not copied.
        return threading.get_ident() in _copied_native
    return True


def refuse_copied_thread() -> None:
    """Raises :class:`CopiedThread` in a copied thread."""
    if is_copied():
        raise CopiedThread


def stand_still_if_copied() -> None:
    """Blocks a copied thread until the worker ends."""
    if is_copied():
        _stand_still()


def copies_stand_still(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions that the program calls, and for functions of threads. A copied thread does not return."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        stand_still_if_copied()
        try:
            return function(*args, **kwargs)
        finally:
            # This process may have become a worker during the call.
            stand_still_if_copied()

    return call


def _stand_still() -> NoReturn:
    while True:
        # The main thread runs the program's signal handlers, which may raise.
        with suppress(BaseException):
            time.sleep(3600)
