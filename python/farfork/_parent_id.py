"""Keeps the value of ``os.getppid`` in children, like their own process id.

The parent process of a child is not the parent process of the program. Threads that poll the parent's id, as in Jupyter
kernels, would conclude that their parent has ended, and end the child.
"""

from __future__ import annotations

import os


class KeptParentId:
    """The parent's id during one checkpoint."""

    def __init__(self) -> None:
        self._read = os.getppid

    def before(self) -> None:
        """Replaces the function before the checkpoint: in a child, other threads may run before this one."""
        read, parent_id, own_id = self._read, os.getppid(), os.getpid()

        def getppid() -> int:
            """The id of the parent process of the program from which this process was forked."""
            # Processes that a child makes with os.fork have another id, and the child is their parent.
            return parent_id if os.getpid() == own_id else read()

        os.getppid = getppid

    def in_parent(self) -> None:
        os.getppid = self._read

    def in_child(self) -> None:
        """Does nothing, so the function stays replaced."""
