"""Finds the command ``farfork``, which starts and queries daemons. The rest of this package does not need it."""

from __future__ import annotations

import os
import shutil

from ._errors import Error


def binary() -> str:
    """Returns the path of the command: ``FARFORK_BIN``, or ``farfork`` on the ``PATH``.

    Raises :class:`Error` if there is none.
    """
    path = os.environ.get("FARFORK_BIN") or shutil.which("farfork")
    if path is None:
        raise Error("farfork: it is not on the PATH; install it, or set its path in FARFORK_BIN")
    return path
