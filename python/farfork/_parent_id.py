"""Keeps ``os.getppid`` as it was in children, like their own process id.

A child has another parent process than the program. Threads that poll the parent's id, as those of Jupyter kernels do,
would take this for the death of their parent and end the child.
"""

from __future__ import annotations

import os


class KeptParentId:
    """The parent's id around one checkpoint."""

    def __init__(self) -> None:
        self._read = os.getppid

    def before(self) -> None:
        """Replaces the function here already: in a child, other threads may run before the one of the checkpoint."""
        read, parent_id, own_id = self._read, os.getppid(), os.getpid()

        def getppid() -> int:
            """The id of the parent process of the program that this process was forked from."""
            # Processes that a child makes with os.fork have another id, and the child for a parent.
            return parent_id if os.getpid() == own_id else read()

        os.getppid = getppid

    def in_parent(self) -> None:
        os.getppid = self._read

    def in_child(self) -> None:
        """Leaves the function replaced."""
