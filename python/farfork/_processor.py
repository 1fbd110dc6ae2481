"""Pins the calling thread to its CPU while the process is captured.

A thread of the daemon then runs on the same CPU. Waking another CPU takes longer than the rest of a request.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

#: Numbers of the CPUs that this machine may have; None before they were read.
_possible: frozenset[int] | None = None

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
        if os.sched_getaffinity(0) != _possible_processors():
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
        os.sched_setaffinity(0, _possible_processors())


def _possible_processors() -> frozenset[int]:
    global _possible
    if _possible is None:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
            _possible = parse_processor_list(file.read())
    return _possible


def parse_processor_list(text: str) -> frozenset[int]:
    """Parses a list of the kernel, such as ``0-3,8``."""
    ranges = (part.partition("-") for part in text.strip().split(","))
    return frozenset(n for first, _, last in ranges for n in range(int(first), int(last or first) + 1))
