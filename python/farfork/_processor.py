"""Keeps the calling thread on its processor while it is captured: there the daemon's thread joins it, and waking another
processor takes longer than all else of a turn."""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

#: How many processors the kernel may ever have, which are numbered from 0; None until that was read.
_possible: int | None = None

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
    """Lets the thread run on all again, which :func:`keep` has named. Not in a child, which may be where there are more of them: its
    thread runs on all."""
    if kept_thread:
        os.sched_setaffinity(0, range(_possible_processors()))


def _possible_processors() -> int:
    global _possible
    if _possible is None:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            # `0-7`; of a list with holes there are fewer than the last number says, and no thread may use so many.
            _possible = int(file.read().rsplit("-", 1)[-1]) + 1
    return _possible
