"""Closes IPython's database of inputs during a checkpoint.

IPython writes each cell to this file. A seed that had the file open could not be forked after the next cell, because
the file would have changed. IPython itself ends its writer thread before each fork (``os.register_at_fork``).
"""

from __future__ import annotations

import sys
import weakref
from typing import Any


class ClosedHistory:
    """Closes the database for one checkpoint."""

    def __init__(self) -> None:
        manager: Any = getattr(running_shell(), "history_manager", None)
        sqlite3 = sys.modules.get("sqlite3")
        is_open = sqlite3 is not None and isinstance(getattr(manager, "db", None), sqlite3.Connection)
        self._manager: Any = manager if is_open and str(manager.hist_file) != ":memory:" else None

    def before(self) -> None:
        if self._manager is not None:
            self._manager.db.close()

    def in_parent(self) -> None:
        if (manager := self._manager) is not None:
            import sqlite3

            types = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
            manager.db = sqlite3.connect(str(manager.hist_file), detect_types=types, **manager.connection_options)
            # As in IPython, the connection is closed when the manager is deleted.
            weakref.finalize(manager, manager.db.close)

    def in_child(self) -> None:
        """Keeps the inputs of a child in memory only."""
        if self._manager is not None:
            self._manager.enabled = False
            self._manager.hist_file = ":memory:"
            self._manager.init_db()


def running_shell() -> Any:
    """Returns the IPython shell that runs this program, or ``None``."""
    ipython = sys.modules.get("IPython")
    get_shell = getattr(ipython, "get_ipython", None)
    return get_shell() if get_shell else None
