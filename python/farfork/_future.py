"""The future of one call in a child."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Callable, TypeVar

T = TypeVar("T")


class ChildFuture(Future[T]):
    """A :class:`concurrent.futures.Future` that knows its child.

    Unlike that of other executors, a call that runs can be cancelled: its child is killed.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        super().__init__()
        #: The child's id, once it runs.
        self.child: str | None = None
        self._kill = kill

    @property
    def node(self) -> str | None:
        """The node that the child runs on, once it does."""
        return self.child.partition(".")[0] if self.child else None

    def running(self) -> bool:
        """Whether the child runs."""
        return self.child is not None and not self.done()

    def cancel(self) -> bool:
        """Gives the call up; its child is killed. Returns whether the future is cancelled now."""
        # It stays pending, as the base class sees it, until its result comes: so it can be cancelled until then.
        was_cancelled = self.cancelled()
        if not super().cancel():
            return False
        if not was_cancelled:
            self.set_running_or_notify_cancel()
            self._kill()
        return True

    def complete(self, get_outcome: Callable[[], Any]) -> None:
        """Takes what ``get_outcome`` returns or raises for the call's outcome, unless it was cancelled."""
        if self.done() or not self._set_running():
            return
        try:
            value = get_outcome()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def _set_running(self) -> bool:
        try:
            return self.set_running_or_notify_cancel()
        except Exception:  # It was cancelled, and told so, a moment ago.
            return False
