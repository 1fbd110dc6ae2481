"""``input`` and ``getpass`` of children: those of a notebook would wait for an answer forever."""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import Any


def use_standard_input() -> None:
    """In a child: makes both read its standard input, which is empty."""
    builtins.input = _read_line
    getpass.getpass = _read_secret


def _read_line(prompt: object = "", /) -> str:
    print(prompt, end="", flush=True)
    line = sys.stdin.readline() if sys.stdin is not None else ""
    if not line:
        raise EOFError("standard input of a child is empty")
    return line.removesuffix("\n")


def _read_secret(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
    return _read_line(prompt)
