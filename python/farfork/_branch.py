""":func:`branch`: a child of this process that runs cells one after the other, and keeps its state."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError
from functools import partial
from types import TracebackType
from typing import Any, Callable, TypeVar

from . import _cells, _output, _task
from ._collector import Collector
from ._errors import BranchClosed, ChildDied, ConnectionLost, RemoteTraceback
from ._executor import Executor
from ._future import ChildFuture

T = TypeVar("T")

_OPTIONS = {"strategy", "memory", "cpus", "processes", "net", "egress", "untrusted", "user_namespace"}


def branch(node: str | None = None, **options: Any) -> Branch:
    """Forks this process onto ``node``; by default, onto the node with the fewest children. Returns the child, which
    runs cells of code.

    ``options`` are ``strategy``, ``memory``, ``cpus``, ``processes``, ``net``, ``egress``, ``untrusted`` and
    ``user_namespace`` of :class:`Executor`. Raises :class:`CheckpointError` and :class:`ChildNotStarted`.
    """
    if node is not None and not isinstance(node, str):
        raise TypeError(f"node must be the name of one node, not {type(node).__name__}")
    if unknown := options.keys() - _OPTIONS:
        raise TypeError(f"branch() has no argument {', '.join(sorted(unknown))}")
    nodes = None if node is None else [node]
    executor = Executor(nodes, max_workers=1, output=_output.PLAIN, **options)
    try:
        begun = executor.submit(_cells.begin)
        begun.result()
    except BaseException:
        executor.abort()
        raise
    return Branch(executor, str(begun.child))


class Branch:
    """A child of this process that runs cells.

    In IPython and Jupyter, cells use the branch's copy of the shell: variables, ``In`` and ``Out``, imported modules,
    magics. Elsewhere, cells run in ``__main__``. The program does not see changes in the branch, and the branch does not see
    changes in the program.
    """

    def __init__(self, executor: Executor, child: str) -> None:
        #: The child's id.
        self.child = child
        self._executor = executor
        self._is_closed = False
        # `disconnect` takes no locks, because the garbage collector may call it anywhere.
        weakref.finalize(self, Collector.disconnect, executor._collector).atexit = False

    @property
    def node(self) -> str:
        """The node that the branch runs on."""
        return self.child.partition(".")[0]

    def run(self, code: str) -> None:
        """Runs a cell in the branch. Shows its output and the value of its last expression in this program.

        Raises the cell's exception. An interrupt of this program (Ctrl-C) interrupts the cell; a second one closes the
        branch.
        """
        failure, interrupt = self._call(partial(_cells.run, code))
        if failure is not None:
            _task.decode_result(failure)
        if interrupt is not None:
            raise interrupt

    def value(self, expression: str) -> Any:
        """Returns the value of an expression in the branch. The value is pickled, so this program must also have its
        class.
        """
        try:
            value, interrupt = self._call(partial(_cells.evaluate, expression))
        except (AttributeError, ImportError) as error:
            if isinstance(error.__cause__, RemoteTraceback):
                raise
            raise TypeError(f"the value of `{expression}` cannot be unpickled here: {error}; is its class defined only in the branch?") from error
        if interrupt is not None:
            raise interrupt
        return value

    def close(self) -> None:
        """Ends the branch, even if a cell runs in it."""
        self._is_closed = True
        self._executor.abort()

    def __enter__(self) -> Branch:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Branch {self.child}{', closed' if self._is_closed else ''}>"

    def _call(self, call: Callable[[], T]) -> tuple[T, KeyboardInterrupt | None]:
        """Runs a call in the branch. Returns the call's result. Also returns the program's interrupt, if there was one and
        the call nevertheless returned normally.
        """
        if self._is_closed or not self._executor.has_workers:
            raise BranchClosed(self.child)
        future = self._executor.submit_to_workers(call)
        if future is None:
            raise ValueError("the cell is larger than 16 MiB, or the package farfork was reloaded")
        try:
            return self._wait(future)
        except _cells.BranchNotBegun:
            self.close()
            raise ChildDied(self.child, "it ended between two cells") from None
        except CancelledError:
            # Another thread has closed the branch.
            raise BranchClosed(self.child) from None
        except (ChildDied, ConnectionLost) as error:
            if not isinstance(error, ChildDied) or error.child == self.child:
                self.close()
            raise

    def _wait(self, future: ChildFuture[T]) -> tuple[T, KeyboardInterrupt | None]:
        try:
            return future.result(), None
        except KeyboardInterrupt as interrupt:
            if future.done() or threading.current_thread() is not threading.main_thread():
                # The cell itself raised the exception.
                raise
            self._executor.interrupt(future)
            try:
                return future.result(), interrupt
            except KeyboardInterrupt:
                if not future.done():
                    self.close()
                raise
