"""The future of one call in a child."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED
from typing import Any, Callable, TypeVar

from ._copied_threads import copies_stand_still

T = TypeVar("T")

#: The futures that threads complete now, by the id of the thread.
_completing: dict[int | None, ChildFuture[Any]] = {}


def unlock_completing(thread: threading.Thread) -> bool:
    """Unlocks the future that ``thread`` completes, if this thread has locked it. Returns whether this was the case.

    An interrupt of `wait` or `as_completed` may leave futures locked by the interrupted thread. The caller waits for
    ``thread``, which would wait for the lock forever.
    """
    future = _completing.get(thread.ident)
    return future is not None and future.unlock()


class ChildFuture(Future[T]):
    """A :class:`concurrent.futures.Future` that knows its child.

    Unlike with other executors, a running call can be cancelled: its child is killed.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        """``kill`` kills the child. It is called again if an interrupt has ended the first call."""
        super().__init__()
        #: The id of the child, once it runs.
        self.child: str | None = None
        self._kill = kill
        self._is_killed = False

    @property
    def node(self) -> str | None:
        """The node of the child, once it runs."""
        return self.child.partition(".")[0] if self.child else None

    def running(self) -> bool:
        """Whether the child runs."""
        return self.child is not None and not self.done()

    # These two methods do not take the future's lock, which the base class takes. Executors call them with their own locks
    # held, and an interrupt of `wait` or `as_completed` may leave a future locked.

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def done(self) -> bool:
        """Whether the call was cancelled or has ended."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)

    def cancel(self) -> bool:
        """Cancels the call and kills its child. Returns whether the future is cancelled now."""
        # For the base class, a future is pending until its result arrives, so a running call can be cancelled too.
        was_cancelled = self.cancelled()
        if not super().cancel():
            return False
        if was_cancelled:
            # An interrupt may have ended the first cancel before it killed the child.
            self._kill_cancelled()
        return True

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Calls ``fn`` with the future when it is done. In a worker, a copied thread does not call it."""
        super().add_done_callback(copies_stand_still(fn))

    def complete(self, get_outcome: Callable[[], Any]) -> None:
        """Completes the future with the value or exception of ``get_outcome``, unless it was cancelled."""
        thread_id = threading.get_ident()
        _completing[thread_id] = self
        try:
            if self.done() or not self._set_running():
                return
            try:
                value = get_outcome()
            except BaseException as error:
                self.set_exception(error)
            else:
                self.set_result(value)
        finally:
            del _completing[thread_id]

    def unlock(self) -> bool:
        """Releases the future's lock if this thread holds it. Returns whether this was the case."""
        is_own: bool = self._condition._is_owned()  # type: ignore[attr-defined]
        while self._condition._is_owned():  # type: ignore[attr-defined]
            self._condition.release()
        return is_own

    def _invoke_callbacks(self) -> None:
        """Called by the base class after each outcome. Kills the child of a cancelled call first: a callback may wait
        for the child's end.
        """
        try:
            if self.cancelled():
                self._kill_cancelled()
        finally:
            super()._invoke_callbacks()  # type: ignore[misc]

    def _kill_cancelled(self) -> None:
        if not self._is_killed:
            self._kill()
            self._is_killed = True
        with self._condition:
            if self._state == CANCELLED:
                self.set_running_or_notify_cancel()

    def _set_running(self) -> bool:
        try:
            return self.set_running_or_notify_cancel()
        except Exception:  # The call was cancelled just before.
            return False
