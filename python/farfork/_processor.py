"""Keeps the calling thread on its processor while it is captured: there the daemon's thread joins it, and waking another
processor takes longer than all else of a turn."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Callable, Optional

#: How many processors the kernel may ever have, which are numbered from 0; None until that was read.
_possible: int | None = None

#: As many as the standard library of C knows.
_ALL = range(1024)

#: sched_getcpu(3), once it was looked up.
_current: Optional[Callable[[], int]] = None


def keep() -> int:
    """Has the thread stay where it is, if it may run on all processors: gives its id, or 0 where it is left as it is. Only
    for who has pages to offer, and so ``ctypes``."""
    global _current
    import ctypes

    try:
        # Who may use all has not chosen; what another one has chosen could not be told from what it is given.
        if len(os.sched_getaffinity(0)) != _possible_processors():
            return 0
        if _current is None:
            _current = ctypes.CDLL(None).sched_getcpu
        os.sched_setaffinity(0, {_current()})
    except (AttributeError, OSError, ValueError):
        return 0
    return threading.get_native_id()


def leave(kept_thread: int) -> None:
    """Lets the thread run on all again, which :func:`keep` has named."""
    if kept_thread:
        # In a child that may not make the call it runs on all already.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _ALL)


def _possible_processors() -> int:
    global _possible
    if _possible is None:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            # `0-7`; of a list with holes there are fewer than the last number says, and no thread may use so many.
            _possible = int(file.read().rsplit("-", 1)[-1]) + 1
    return _possible
