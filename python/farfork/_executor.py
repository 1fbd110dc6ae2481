""":class:`Executor`: an executor of :mod:`concurrent.futures` whose workers are children of this process.

``_collector`` handles its calls until their outcome. ``_workers`` assigns calls to workers; ``_batch`` handles executors
that fork a child for each call. ``_worker`` and ``_task`` run calls in children.
"""

from __future__ import annotations

import atexit
import os
import time
import traceback
import weakref
from concurrent.futures import Executor as _Executor
from contextlib import suppress
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Callable, Iterable, Iterator, Literal, NoReturn, ParamSpec, Sequence, TypeVar, overload

from . import _checkpoint_lock, _output, _results, _task, _worker
from ._checkpoint import Child
from ._checkpoint_lock import outside_completions
from ._collector import Collector
from ._connection import require_no_child
from ._copied_threads import CopiedThread, copies_stand_still, refuse_copied_thread
from ._errors import Error
from ._future import ChildFuture
from ._interrupts import HeldSignals, drop_inherited_signals
from ._options import ExecutorOptions, fork_fields, split_commas
from ._pickling import CallPickling, ForkedState
from ._seeding import make_seed
from ._shared import SharedObjects

P = ParamSpec("P")
T = TypeVar("T")

#: Default limit on simultaneous children if each call has its own child. The limit keeps several machines busy. It also
#: bounds their memory use: each child takes memory for the pages that it writes.
FRESH_CHILDREN_MAX = 256

#: Chunks per worker if the executor chooses their size. With several chunks, a worker with quick chunks runs more of them.
_CHUNKS_PER_WORKER = 4


class Executor(_Executor):
    """Calls functions in children of this process, forked from its live state onto the nodes of the cluster.

    Up to ``max_workers`` children, the workers, are forked for the first calls, and run one call after the other. The
    default is the number of this machine's processors, for each node in ``nodes``. Each worker calls
    ``initializer(*initargs)`` first.

    The calls for which workers are forked are not pickled, whatever they are: workers have this process's memory. Later
    calls are pickled for the existing workers. If a call cannot be pickled, is larger than 16 MiB, or uses a function or
    class that was defined or changed after the fork, new workers are forked from the current state. A worker keeps what its
    calls leave in its memory, and does not see later changes in this process. Objects in ``shared`` are not pickled: workers
    have them in memory, so this process must not change them. With ``reuse_workers=False``, each call has its own child,
    forked from the state at the call's submission, and ``max_workers`` is 256 by default.

    ``nodes`` are names of nodes, over which the children are distributed in turn. By default the nodes with the fewest
    children are used first. A child whose call runs for longer than ``timeout`` seconds is killed, and the call's future
    raises :class:`ChildTimeout`. A call whose worker died is repeated up to ``retries`` times.

    The output of workers is printed here with the worker's name before each line (``output="tagged"``), printed unchanged
    (``"plain"``), or only written to the children's logs (``"log"``, and without ``reuse_workers``). Records of
    :mod:`logging` are handled by this process's loggers. If output is only in the children's logs, the children's own
    loggers handle them.

    ``strategy`` selects how memory is fetched, as ``farfork fork --strategy`` does: ``"cow"``, ``"prefetch"`` (the default)
    or ``"eager"``, optionally with ``cache`` and ``first`` after commas. A child may use ``memory`` bytes of memory, also
    given as text such as ``"512MiB"``, and ``cpus`` processors (0.5 is half of one). A child that needs more memory is
    killed, and its call raises :class:`ChildDied`. A child may have ``processes`` processes and threads; starting more
    fails.

    ``net`` is the network of a child, as for ``farfork fork --net``: ``"private"``, ``"shared"`` with the other children of
    the same fork on the node, or ``"host"``, the node's own network. From a private network, a child can connect to the
    destinations in ``egress``, as for ``farfork fork --egress``: ``["any"]``, or networks and addresses like
    ``["10.1.0.0/16", "192.0.2.7:443"]``.

    With ``untrusted``, children have no capabilities, and no access to devices and system calls that could lead out of their
    containers, as with ``farfork fork --untrusted``. With ``user_namespace`` in addition, they have user ids that nothing
    else on their nodes has.

    Children end with this process, and so do their seeds.
    """

    #: The module that pickles calls that ``pickle`` cannot pickle, as in :class:`CallPickling`.
    _cloudpickle: ModuleType | None = None

    def __init__(
        self,
        nodes: Sequence[str] | None = None,
        *,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        shared: Iterable[object] = (),
        reuse_workers: bool = True,
        retries: int = 0,
        output: str = _output.TAGGED,
        timeout: float | None = None,
        strategy: str = "",
        memory: int | str | None = None,
        cpus: float | None = None,
        processes: int | None = None,
        net: str = "private",
        egress: Sequence[str] = (),
        untrusted: bool = False,
        user_namespace: bool = False,
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be 1 or more")
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds, such as 10 or 0.5, not {timeout!r}")
        if timeout is not None and timeout <= 0:
            raise ValueError("timeout must be more than 0 seconds, or None for no limit")
        if output not in _output.MODES:
            raise ValueError(f"output must be one of {', '.join(_output.MODES)}")
        if retries < 0 or (retries and not reuse_workers):
            raise ValueError("retries must be 0 or more, and 0 without reuse_workers")
        nodes = split_commas(nodes)
        fields = fork_fields(nodes, strategy, memory, cpus, processes, net, egress, untrusted, user_namespace)
        default_max = (os.cpu_count() or 1) * max(len(nodes), 1) if reuse_workers else FRESH_CHILDREN_MAX
        self._children_max = max_workers or default_max
        self._reuse_workers = reuse_workers
        self._initializer = partial(initializer, *initargs) if initializer else None
        self._sends_records = output != _output.LOG
        self._pickling = CallPickling(SharedObjects(shared), self._cloudpickle)
        options = ExecutorOptions(nodes, fields, self._children_max, timeout, retries, output)
        self._collector = Collector(options, self._pickling)
        _executors.add(self)

    @property
    def max_workers(self) -> int:
        """Limit on simultaneous children."""
        return self._children_max

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> ChildFuture[T]:
        """Calls ``fn`` in a worker."""
        return self._submit_calls([partial(fn, *args, **kwargs)])[0]

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = 1,
        return_exceptions: Literal[False] = False,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = 1,
        return_exceptions: bool,
    ) -> Iterator[T | BaseException]: ...

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = 1,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Like :func:`map`, in workers; results are in order.

        The iterator raises :class:`concurrent.futures.TimeoutError` if a result is missing ``timeout`` seconds after this
        call. It raises the exception of a call when it reaches that call. ``chunksize`` consecutive calls are sent to a
        worker together, and the executor's ``timeout`` counts for all of them; with ``None``, the size is chosen so that each
        worker gets about four chunks. When the iterator is closed or raises, the remaining calls are cancelled.

        With ``return_exceptions``, the iterator does not raise the exception of a call, but returns it in place of the
        result. The same applies to the error of a child that returned no result. So each call has an outcome, and a failure
        cancels no other call.
        """
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be 1 or more, or None")
        end = None if timeout is None else time.monotonic() + timeout
        arguments = list(zip(*iterables))
        if chunksize is None:
            chunksize = max(1, len(arguments) // (_CHUNKS_PER_WORKER * self._children_max))
        chunks = [arguments[first : first + chunksize] for first in range(0, len(arguments), chunksize)]
        call_chunk = _task.run_chunk if return_exceptions else _results.call_each
        futures = self._submit_calls([partial(call_chunk, fn, chunk) for chunk in chunks])
        if return_exceptions:
            return _results.outcomes_in_order(futures, [len(chunk) for chunk in chunks], end)
        return _results.results_in_order(futures, end)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further calls. With ``cancel_futures``, cancels calls that have not begun. With ``wait``, returns when all
        calls have ended.
        """
        self._collector.shutdown(wait, cancel_futures)

    def cancel_all(self) -> None:
        """Cancels all calls. The children of running calls are killed."""
        self._collector.cancel_all()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Waits for all calls. After an interrupt of the block or of the wait, the calls are cancelled."""
        try:
            if exc_type is not None and not issubclass(exc_type, Exception):
                self.cancel_all()
            self.shutdown()
        except BaseException:
            self.abort()
            raise

    # ---- for branches and back ends

    def abort(self) -> None:
        """Cancels all calls, and ends the executor."""
        self.cancel_all()
        self.shutdown()

    @property
    def has_workers(self) -> bool:
        """Whether workers exist. They have only the objects that were shared before they were forked."""
        return self._collector.has_workers

    @copies_stand_still
    @outside_completions
    def submit_to_workers(self, call: Callable[[], T]) -> ChildFuture[T] | None:
        """Pickles a call for existing workers; ``None`` if this is not possible."""
        require_no_child()
        with self._collector.lock:
            self._collector.require_open()
            queued = self._collector.queue_pickled([call])
            return None if queued is None else queued[0]

    def interrupt(self, future: ChildFuture[Any]) -> None:
        """Raises :class:`KeyboardInterrupt` in a worker's call, if the worker allows it."""
        self._collector.interrupt(future)

    @copies_stand_still
    @outside_completions
    def _submit_calls(self, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        collector = self._collector
        if not calls:
            # Do not take the lock: in a worker, a thread of a call would wait for it forever.
            collector.require_open()
            return []
        # Check before taking the lock: in a worker, the thread that runs the calls never releases it.
        require_no_child()
        with collector.lock:
            collector.require_open()
            if self._reuse_workers and (queued := collector.queue_pickled(calls)) is not None:
                return queued
            # Record the state before the checkpoint: a definition that changes during the checkpoint then counts as changed.
            state = ForkedState(self._pickling.shared)
            futures: list[ChildFuture[Any]] = []
            signals = HeldSignals()
            signals.begin()
            try:
                futures = self._fork_for(calls, state, signals)
            except CopiedThread:
                signals.drop()
                raise
            finally:
                try:
                    signals.end()
                    signals.deliver()
                except BaseException:
                    # The caller gets the exception instead of the futures.
                    for future in futures:
                        future.cancel()
                    raise
            return futures

    def _fork_for(self, calls: list[_task.Call], state: ForkedState, signals: HeldSignals) -> list[ChildFuture[Any]]:
        """Makes a seed of this process, and queues the calls for children of it."""
        child = make_seed()
        if child.is_child:
            self._run_child(child, calls, signals)
        try:
            if self._reuse_workers:
                return self._collector.start_workers(child.id, state, len(calls))
            return self._collector.start_batch(child.id, len(calls))
        except BaseException:
            refuse_copied_thread()
            with suppress(Error, OSError):
                child.drop()
            raise

    def _run_child(self, child: Child, calls: list[_task.Call], signals: HeldSignals) -> NoReturn:
        """In a child: runs calls, then ends the child. Never returns to the program's own code."""
        try:
            drop_inherited_signals()
            # Drops delayed signals, which belong to the program.
            signals.end()
            if self._reuse_workers:
                _worker.run_worker(child, calls, self._initializer, self._pickling, self._sends_records)
            # Only the index of the call is sent: the child has the call in memory.
            index = int(child.payload) if child.has_payload else child.index
            _task.run_in_child(child, calls[index])
        except BaseException:
            traceback.print_exc()
        finally:
            _task.end_child(1)


#: The executors of this process.
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _reset_executors() -> None:
    """Drops the connections that a process has inherited by os.fork. Two processes on one connection would receive each
    other's replies.

    ``_hooks`` does not call this function in a child of farfork, which has its parent's threads.
    """
    _checkpoint_lock.reset_after_fork()
    for executor in list(_executors):
        executor._collector.reset_after_fork()


def _wait_for_calls() -> None:
    """Waits at the end of the program, as the executors of :mod:`concurrent.futures` do."""
    for executor in list(_executors):
        executor.shutdown()


atexit.register(_wait_for_calls)
os.register_at_fork(after_in_child=_reset_executors)
