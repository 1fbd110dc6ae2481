"""Runs the functions registered with :func:`os.register_at_fork` around a checkpoint.

The interpreter runs them from ``os.fork`` only. ``PyOS_AfterFork_Child``, its documented function for other forks, also
recreates the GIL and deletes the states of all other threads, but a child of farfork has all threads of its parent.
So this module runs the functions. It releases the locks that were acquired before the fork instead of reinitializing
them, and marks no thread as dead.
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

#: Of these modules, hooks for children deal with threads that are gone, and nothing else.
_THREADS_ONLY = frozenset({"threading", "asyncio.events", "farfork._executor"})


class AtFork:
    """The registered functions, at the time of one checkpoint."""

    def __init__(self) -> None:
        self._before, self._in_parent, in_child = (list(hooks) for hooks in _find_hook_lists())
        # Now rather than in each child, which has a copy made of each page that it writes to.
        self._in_child = [replacement for hook in in_child if (replacement := self._child_hook(hook))]

    def before(self) -> None:
        """Those that run before, the latest first."""
        for hook in reversed(self._before):
            _run_hook(hook)

    def in_parent(self) -> None:
        """Those of the parent."""
        for hook in self._in_parent:
            _run_hook(hook)

    def in_child(self) -> None:
        """Those of a child."""
        for hook in self._in_child:
            _run_hook(hook)

    def _child_hook(self, hook: Hook) -> Hook | None:
        """What is to be done in a hook's place in a child whose threads all go on."""
        owner, name = getattr(hook, "__self__", None), getattr(hook, "__name__", "")
        module = getattr(hook, "__module__", None)
        if module in _THREADS_ONLY:
            return None
        if module == "logging" and name == "_after_at_fork_child_reinit_locks":
            # Makes the locks of all handlers anew, which another thread may hold and go on to give back.
            return sys.modules["logging"]._lock.release  # type: ignore[no-any-return]
        if isinstance(owner, _LOCK_TYPES) and name == "_at_fork_reinit":
            return owner.release if self._acquires(owner) else None
        pool = sys.modules.get("concurrent.futures.thread")
        if owner is not None and owner is getattr(pool, "_threads_queues", None):
            return None
        return hook

    def _acquires(self, lock: Any) -> bool:
        """Whether a hook takes this lock before."""
        return any(
            getattr(hook, "__self__", None) is lock and getattr(hook, "__name__", "") == "acquire"
            for hook in self._before
        )


def _mark_before() -> None:
    """Does nothing; the list that holds it is the one that is looked for."""


def _mark_in_parent() -> None:
    """As :func:`_mark_before`."""


def _mark_in_child() -> None:
    """As :func:`_mark_before`."""


_hook_lists: tuple[list[Hook], list[Hook], list[Hook]] | None = None


def _find_hook_lists() -> tuple[list[Hook], list[Hook], list[Hook]]:
    """The interpreter's own lists, which live as long as it does."""
    global _hook_lists
    if _hook_lists is None:
        os.register_at_fork(before=_mark_before, after_in_parent=_mark_in_parent, after_in_child=_mark_in_child)
        _hook_lists = (_find_list(_mark_before), _find_list(_mark_in_parent), _find_list(_mark_in_child))
    return _hook_lists


def _find_list(mark: Hook) -> list[Hook]:
    if found := _search_list(mark):
        return found
    if gc.get_freeze_count():
        # What is frozen is not looked at.
        gc.unfreeze()
        found = _search_list(mark)
        gc.freeze()
    if found:
        return found
    raise CheckpointError("this interpreter does not show what was registered with os.register_at_fork; use CPython")


def _search_list(mark: Hook) -> list[Hook] | None:
    return next((holder for holder in gc.get_referrers(mark) if type(holder) is list), None)


def _run_hook(hook: Hook) -> None:
    """As around ``os.fork``, what a hook raises is told and otherwise ignored."""
    try:
        hook()
    except BaseException:
        print(f"Exception ignored in {hook!r}:", file=sys.stderr)
        traceback.print_exc()
