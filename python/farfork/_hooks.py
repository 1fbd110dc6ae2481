"""Runs the functions registered with :func:`os.register_at_fork` around a checkpoint.

The interpreter runs them only in ``os.fork``. ``PyOS_AfterFork_Child``, its documented function for other forks, also
recreates the GIL and deletes the states of all other threads, but a child of farfork has all threads of its parent. So this
module runs the functions. It releases the locks that were acquired before the fork instead of reinitializing them, and marks
no thread as dead.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from typing import Any, Callable

from ._errors import CheckpointError

Hook = Callable[[], object]

_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))

#: The child hooks of these modules assume that all other threads ended in the fork.
_THREADS_ONLY = frozenset({"threading", "asyncio.events", "farfork._executor"})


class AtFork:
    """The functions that are registered at the time of one checkpoint."""

    def __init__(self) -> None:
        self._before, self._in_parent, in_child = (list(hooks) for hooks in _find_hook_lists())
        # Find the replacements in the parent: in a child, each page that is written must be copied.
        self._in_child = [replacement for hook in in_child if (replacement := self._child_hook(hook))]

    def before(self) -> None:
        """Runs the functions registered with ``before``, the latest first."""
        for hook in reversed(self._before):
            _run_hook(hook)

    def in_parent(self) -> None:
        """Runs the functions registered with ``after_in_parent``."""
        for hook in self._in_parent:
            _run_hook(hook)

    def in_child(self) -> None:
        """Runs the functions registered with ``after_in_child``, or their replacements."""
        for hook in self._in_child:
            _run_hook(hook)

    def _child_hook(self, hook: Hook) -> Hook | None:
        """Returns the replacement for a hook in a child, in which all threads continue; ``None`` to skip the hook."""
        owner, name = getattr(hook, "__self__", None), getattr(hook, "__name__", "")
        module = getattr(hook, "__module__", None)
        if module in _THREADS_ONLY:
            return None
        if module == "logging" and name == "_after_at_fork_child_reinit_locks":
            # The hook recreates the locks of all handlers. Another thread may hold one of the locks, and will release
            # it.
            return sys.modules["logging"]._lock.release  # type: ignore[no-any-return]
        if isinstance(owner, _LOCK_TYPES) and name == "_at_fork_reinit":
            return owner.release if self._acquires(owner) else None
        pool = sys.modules.get("concurrent.futures.thread")
        if owner is not None and owner is getattr(pool, "_threads_queues", None):
            return None
        return hook

    def _acquires(self, lock: Any) -> bool:
        """Whether a hook acquires this lock before the fork."""
        return any(
            getattr(hook, "__self__", None) is lock and getattr(hook, "__name__", "") == "acquire"
            for hook in self._before
        )


def _mark_before() -> None:
    """Does nothing. It identifies the list that contains it."""


def _mark_in_parent() -> None:
    """Like :func:`_mark_before`."""


def _mark_in_child() -> None:
    """Like :func:`_mark_before`."""


_hook_lists: tuple[list[Hook], list[Hook], list[Hook]] | None = None


def _find_hook_lists() -> tuple[list[Hook], list[Hook], list[Hook]]:
    """Returns the interpreter's own lists of registered functions. They exist as long as the interpreter."""
    global _hook_lists
    if _hook_lists is None:
        os.register_at_fork(before=_mark_before, after_in_parent=_mark_in_parent, after_in_child=_mark_in_child)
        _hook_lists = (_find_list(_mark_before), _find_list(_mark_in_parent), _find_list(_mark_in_child))
    return _hook_lists


def _find_list(mark: Hook) -> list[Hook]:
    if found := _search_list(mark):
        return found
    if gc.get_freeze_count():
        # gc.get_referrers() does not find frozen objects.
        gc.unfreeze()
        found = _search_list(mark)
        gc.freeze()
    if found:
        return found
    raise CheckpointError("this interpreter does not reveal the functions registered with os.register_at_fork; use CPython")


def _search_list(mark: Hook) -> list[Hook] | None:
    return next((holder for holder in gc.get_referrers(mark) if type(holder) is list), None)


def _run_hook(hook: Hook) -> None:
    """Runs a hook. As in ``os.fork``, its exception is reported and otherwise ignored."""
    try:
        hook()
    except BaseException:
        print(f"Exception ignored in {hook!r}:", file=sys.stderr)
        traceback.print_exc()
