"""Pages that this process offers to a capture, for the system calls that its threads make during the capture.

Without them the daemon maps pages in this process during the capture, which takes longer.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys

from . import _protocol

#: Size of the pages, in bytes: enough for about fifty threads. Unused pages take no memory.
PAGES_BYTES = 256 << 10

#: Address and length of the pages; the length is 0 if they cannot be mapped. They are mapped once, and stay mapped.
_mapped_pages: tuple[int, int] | None = None


def offer_pages() -> tuple[int, int]:
    """Maps the pages if needed. Returns their address and length in bytes. Only one thread may call this function at a
    time.
    """
    global _mapped_pages
    # Do not import ctypes: that takes a hundred times as long as the pages save. In programs with NumPy, it is imported
    # already.
    if _mapped_pages is None and "ctypes" in sys.modules:
        try:
            _mapped_pages = (_map_pages(), PAGES_BYTES)
        except (AttributeError, OSError):
            _mapped_pages = (0, 0)
    return _mapped_pages or (0, 0)


def _map_pages() -> int:
    """Maps the pages. They are never writable and executable at once: some programs must not have such memory."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, PAGES_BYTES, mmap.PROT_READ | mmap.PROT_EXEC, flags, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    second = address + mmap.PAGESIZE
    if libc.mprotect(second, PAGES_BYTES - mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    marker = struct.pack("<QQQ", _protocol.PAGES_MAGIC, address, PAGES_BYTES)
    ctypes.memmove(second, marker, len(marker))
    return int(address)
