"""Gives children logs if the standard streams lead back into the program, as in a Jupyter kernel.

Such a kernel reads its descriptors 1 and 2 through pipes. A child would have copies of the pipes, and its output would
be lost in them. So the descriptors refer to other files during the checkpoint, and a child gets its log in place of
these files.
"""

from __future__ import annotations

import fcntl
import os
import stat


class OwnStreams:
    """The standard streams during one checkpoint."""

    def __init__(self) -> None:
        #: Copies of the pipes, by stream number.
        self._pipes: dict[int, int] = {}

    def before(self) -> None:
        """Redirects streams that this process reads itself to memory files."""
        inodes = {fd: inode for fd in (1, 2) if (inode := _pipe_inode(fd)) is not None}
        # Most programs have no such pipes, and need no search.
        read_here = _inodes_read_here() if inodes else set()
        for fd in (fd for fd, inode in inodes.items() if inode in read_here):
            memory = os.memfd_create(f"stream {fd}")
            self._pipes[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            os.dup2(memory, fd)
            os.close(memory)

    def in_parent(self) -> None:
        """Restores the streams, and writes to them the data that other threads have written to the memory files."""
        for fd, pipe in self._pipes.items():
            memory = os.dup(fd)
            os.dup2(pipe, fd)
            os.close(pipe)
            with open(memory, "rb") as file:
                file.seek(0)
                written = memoryview(file.read())
            while written:
                written = written[os.write(fd, written) :]

    def in_child(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe)


def _pipe_inode(fd: int) -> int | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_ino if stat.S_ISFIFO(status.st_mode) else None


def _inodes_read_here() -> set[int]:
    """Returns the inodes of the pipes that this process can read."""
    inodes = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            inode = _pipe_inode(fd)
            if inode is not None and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                inodes.add(inode)
        except OSError:
            pass  # It was the descriptor of /proc/self/fd, which is closed.
    return inodes
