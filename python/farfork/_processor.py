"""Pins the calling thread to its processor while the process is captured.

The daemon's thread then runs on the same processor. Waking another processor takes longer than the rest of a request.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

#: How many processors the kernel may ever have, which are numbered from 0; None until that was read.
_possible_count: int | None = None

#: sched_getcpu(3), once it was looked up.
_getcpu: Optional[Callable[[], int]] = None


def pin_thread() -> int:
    """Has the thread stay where it is, if it may run on all processors: gives its id, or 0 where it is left as it is. Only
    for who has pages to offer, and so ``ctypes``."""
    global _getcpu
    import ctypes

    try:
        # Who may use all has not chosen; what another one has chosen could not be told from what it is given.
        if len(os.sched_getaffinity(0)) != _possible_processors():
            return 0
        if _getcpu is None:
            _getcpu = ctypes.CDLL(None).sched_getcpu
        os.sched_setaffinity(0, {_getcpu()})
    except (AttributeError, OSError, ValueError):
        return 0
    return threading.get_native_id()


def unpin_thread(thread_id: int) -> None:
    """Lets the thread run on all again, which :func:`pin_thread` has named. Not in a child, which may be where there are more of them: its
    thread runs on all."""
    if thread_id:
        os.sched_setaffinity(0, range(_possible_processors()))


def _possible_processors() -> int:
    global _possible_count
    if _possible_count is None:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            # `0-7`; of a list with holes there are fewer than the last number says, and no thread may use so many.
            _possible_count = int(file.read().rsplit("-", 1)[-1]) + 1
    return _possible_count
