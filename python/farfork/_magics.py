"""The magics of ``%load_ext farfork``."""

from __future__ import annotations

import shlex
from typing import Any

from ._branch import Branch, branch


def load_ipython_extension(shell: Any) -> None:
    """Registers ``%branch`` and ``%%branch``."""

    def run_magic(line: str, cell: str | None = None) -> None:
        words = shlex.split(line)
        if cell is None and 1 <= len(words) <= 2:
            shell.user_ns[words[0]] = branch(*words[1:])
        elif cell is not None and len(words) == 1:
            target = shell.user_ns.get(words[0])
            if not isinstance(target, Branch):
                raise NameError(f"`{words[0]}` is no branch; make one with `%branch {words[0]} NODE`")
            target.run(cell)
        else:
            raise ValueError("write `%branch NAME [NODE]`, or a cell that begins with `%%branch NAME`")

    shell.register_magic_function(run_magic, magic_kind="line_cell", magic_name="branch")
