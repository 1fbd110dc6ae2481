"""Pins the calling thread to its CPU while the process is captured.

A thread of the daemon then runs on the same CPU. Waking another CPU takes longer than the rest of a request.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

#: Highest number of a CPU that this machine may have, plus 1; None before it was read.
_possible_count: int | None = None

#: sched_getcpu(3), after it was looked up.
_getcpu: Optional[Callable[[], int]] = None


def pin_thread() -> int:
    """Pins the calling thread to its current CPU if it may run on all CPUs. Returns the thread's id, or 0 if nothing was
    changed. Only called after :func:`_pages.offer_pages` has mapped pages, so ``ctypes`` is imported.
    """
    global _getcpu
    import ctypes

    try:
        # Pin only a thread that may run on all CPUs: that affinity is what unpin_thread() restores.
        if len(os.sched_getaffinity(0)) != _possible_processors():
            return 0
        if _getcpu is None:
            _getcpu = ctypes.CDLL(None).sched_getcpu
        os.sched_setaffinity(0, {_getcpu()})
    except (AttributeError, OSError, ValueError):
        return 0
    return threading.get_native_id()


def unpin_thread(thread_id: int) -> None:
    """Lets a thread that :func:`pin_thread` returned run on all CPUs again. Not called in a child: the child's node may
    have more CPUs, and the child's thread may already run on all of them.
    """
    if thread_id:
        os.sched_setaffinity(0, range(_possible_processors()))


def _possible_processors() -> int:
    global _possible_count
    if _possible_count is None:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            # For example `0-7`. If the list has gaps, the number is too high. Then no thread may run on that many CPUs, so
            # none is pinned.
            _possible_count = int(file.read().rsplit("-", 1)[-1]) + 1
    return _possible_count
