"""Replaces ``input`` and ``getpass`` in children: in a notebook, the original functions would wait for an answer
forever.
"""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import Any

from ._history import running_shell

_NO_INPUT = "a child has no standard input"


def use_standard_input() -> None:
    """In a child: makes ``input`` and ``getpass`` read the child's standard input, which is empty."""
    builtins.input = _read_line
    getpass.getpass = _read_secret
    kernel: Any = getattr(running_shell(), "kernel", None)
    if kernel is not None:
        # For references that the program has imported earlier, as by `from getpass import getpass`.
        kernel._allow_stdin = True
        kernel._input_request = _refuse_request


def _read_line(prompt: object = "", /) -> str:
    print(prompt, end="", flush=True)
    line = sys.stdin.readline() if sys.stdin is not None else ""
    if not line:
        raise EOFError(_NO_INPUT)
    return line.removesuffix("\n")


def _refuse_request(*_arguments: Any, **_options: Any) -> str:
    raise EOFError(_NO_INPUT)


def _read_secret(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
    return _read_line(prompt)
