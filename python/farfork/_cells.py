"""Runs the cells of a branch in its child: in IPython's shell if the program runs in one, otherwise in ``__main__``."""

from __future__ import annotations

import ast
import itertools
import linecache
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Callable

from . import _display, _task, _worker
from ._history import running_shell

#: Runs one cell. Returns its exception and the text of the traceback.
CellRunner = Callable[[str], "tuple[BaseException, str] | None"]

#: Set in the child of a branch by :func:`begin`.
_run: CellRunner | None = None


def begin() -> None:
    """Makes this child a branch."""
    global _run
    _worker.current().allow_interrupts()
    shell = running_shell()
    _run = _run_in_main if shell is None else _shell_runner(shell)


def run(code: str) -> bytes | None:
    """Runs a cell. Returns its exception, pickled.

    Raises :class:`BranchNotBegun` in a child that replaced the branch's child, and lacks the branch's state.
    """
    if _run is None:
        raise BranchNotBegun
    failure = _run(code)
    if failure is None:
        return None
    error, text = failure
    frames = error.__traceback__
    try:
        return _task.encode_failure(error, text)
    finally:
        # Keep the frames for a debugger in the next cell.
        error.__traceback__ = frames


def evaluate(expression: str) -> Any:
    """Returns the value of an expression. Raises the exception of the expression, and :class:`BranchNotBegun` as
    :func:`run` does.
    """
    if _run is None:
        raise BranchNotBegun
    shell = running_shell()
    namespace = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return eval(expression.strip(), shell.user_global_ns if shell else namespace, namespace)


class BranchNotBegun(Exception):
    """This child does not have the state of the branch."""


def _shell_runner(shell: Any) -> CellRunner:
    shown = _ShownTracebacks(shell)
    # Number the branch's cells after the cell that made the branch. The shell has not counted that cell yet, because it
    # still runs.
    shell.execution_count = max(shell.execution_count, len(shell.history_manager.input_hist_raw))

    def run_cell(code: str) -> tuple[BaseException, str] | None:
        result = shell.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            shown.print()
            return None
        return error, shown.take() or repr(error)

    return run_cell


class _ShownTracebacks:
    """Receives the tracebacks that the shell would show. The traceback of a cell's error is sent to the program. Others,
    such as those of ``%run``, are printed.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._last = ""
        shell._showtraceback = self._show

    def _show(self, _type: Any, _value: Any, lines: Any) -> None:
        # Only the last traceback of a cell can be the error of the cell, so print the previous one.
        self.print()
        self._last = _display.traceback_text(self._shell, lines)

    def take(self) -> str:
        text, self._last = self._last, ""
        return text

    def print(self) -> None:
        if text := self.take():
            print(text, file=sys.stderr)


_numbers = itertools.count(1)


def _run_in_main(code: str) -> tuple[BaseException, str] | None:
    name = f"<branch cell {next(_numbers)}>"
    # The module `traceback` finds the cell's source in this cache.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    namespace = vars(sys.modules["__main__"])
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            exec(compile(ast.Interactive([last]), name, "single"), namespace)
    except BaseException as error:
        frames = _frames_of_cell(error.__traceback__)
        return error, "".join(traceback.format_exception(type(error), error, frames))
    return None


def _frames_of_cell(frames: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without its outermost frames, which belong to this package."""
    package = os.path.dirname(__file__)
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == package:
        frames = frames.tb_next
    return frames
