"""The magics of ``%load_ext farfork``."""

from __future__ import annotations

import builtins
import keyword
import shlex
from typing import Any

from ._branch import Branch, branch


def load_ipython_extension(shell: Any) -> None:
    """Registers ``%branch`` and ``%%branch``."""

    def run_magic(line: str, cell: str | None = None) -> None:
        words = shlex.split(line)
        if cell is None and 1 <= len(words) <= 2:
            name = words[0]
            if not name.isidentifier() or keyword.iskeyword(name) or hasattr(builtins, name):
                raise ValueError(f"`{name}` cannot be the name of a branch variable")
            replaced, shell.user_ns[name] = shell.user_ns.get(name), branch(*words[1:])
            if isinstance(replaced, Branch):
                replaced.close()
        elif cell is not None and len(words) == 1:
            target = shell.user_ns.get(words[0])
            if not isinstance(target, Branch):
                raise NameError(f"`{words[0]}` is not a branch; make one with `%branch {words[0]} NODE`")
            target.run(cell)
        else:
            raise ValueError("write `%branch NAME [NODE]`, or a cell that begins with `%%branch NAME`")

    shell.register_magic_function(run_magic, magic_kind="line_cell", magic_name="branch")
