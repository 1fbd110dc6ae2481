"""Runs the cells of a branch in its child: with IPython's shell, if the program runs in one, or in ``__main__``."""

from __future__ import annotations

import ast
import asyncio
import itertools
import linecache
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Callable

from . import _task, _worker
from ._history import running_shell

#: Runs one cell. Returns what it raised, and the text of its traceback.
CellRunner = Callable[[str], "tuple[BaseException, str] | None"]

#: In the child of a branch that has begun.
_run: CellRunner | None = None


def begin() -> None:
    """Makes this child a branch."""
    global _run
    _leave_event_loop()
    _worker.current().allow_interrupts()
    shell = running_shell()
    _run = _run_in_main if shell is None else _shell_runner(shell)


def run(code: str) -> bytes | None:
    """Runs a cell. Returns what it raised, pickled.

    Raises :class:`BranchNotBegun` in a child that replaced the branch's own, and so lacks its state.
    """
    if _run is None:
        raise BranchNotBegun
    failure = _run(code)
    return None if failure is None else _task.encode_failure(*failure)


def evaluate(expression: str) -> Any:
    """The value of an expression. Raises as :func:`run`, and what the expression raises."""
    if _run is None:
        raise BranchNotBegun
    shell = running_shell()
    namespace = vars(sys.modules["__main__"]) if shell is None else shell.user_ns
    return eval(expression.strip(), shell.user_global_ns if shell else namespace, namespace)


class BranchNotBegun(Exception):
    """This child has not the state of the branch."""


def _leave_event_loop() -> None:
    """Has this thread leave the event loop that runs the program's cell: a cell of the branch may run its own."""
    if (loop := asyncio._get_running_loop()) is not None:
        task = asyncio.current_task(loop)
        if task is not None:
            asyncio.tasks._leave_task(loop, task)
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(asyncio.new_event_loop())


def _shell_runner(shell: Any) -> CellRunner:
    texts: list[str] = []

    def keep_traceback(_type: Any, _value: Any, lines: Any) -> None:
        texts.append(shell.InteractiveTB.stb2text(lines))

    shell._showtraceback = keep_traceback
    # The cell that made the branch has this number, and runs.
    shell.execution_count = max(shell.execution_count, len(shell.history_manager.input_hist_raw))

    def run_cell(code: str) -> tuple[BaseException, str] | None:
        texts.clear()
        result = shell.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return None if error is None else (error, "\n".join(texts) or repr(error))

    return run_cell


_numbers = itertools.count(1)


def _run_in_main(code: str) -> tuple[BaseException, str] | None:
    name = f"<branch cell {next(_numbers)}>"
    # For tracebacks.
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
    """A traceback without the frames of this package."""
    package = os.path.dirname(__file__)
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == package:
        frames = frames.tb_next
    return frames
