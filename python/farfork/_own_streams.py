"""Gives children logs where the standard streams lead back into the program, as in a Jupyter kernel.

Such a kernel reads what is written to its descriptors 1 and 2 through pipes. A child would have pipes of its own there,
and its output would end in them. Descriptors that lead elsewhere at the checkpoint are the child's log.
"""

from __future__ import annotations

import fcntl
import os
import stat


class OwnStreams:
    """The standard streams around one checkpoint."""

    def __init__(self) -> None:
        #: Copies of the pipes, by the number of the stream.
        self._pipes: dict[int, int] = {}

    def before(self) -> None:
        """Leads streams whose readers are in this process to memory files."""
        inodes = {fd: inode for fd in (1, 2) if (inode := _pipe_inode(fd)) is not None}
        # Most programs have none.
        read_here = _inodes_read_here() if inodes else set()
        for fd in (fd for fd, inode in inodes.items() if inode in read_here):
            memory = os.memfd_create(f"stream {fd}")
            self._pipes[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            os.dup2(memory, fd)
            os.close(memory)

    def in_parent(self) -> None:
        """Leads them back, and writes what other threads wrote meanwhile."""
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
    """The pipes that this process can read."""
    inodes = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            inode = _pipe_inode(fd)
            if inode is not None and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                inodes.add(inode)
        except OSError:
            pass  # It was that of the directory.
    return inodes
