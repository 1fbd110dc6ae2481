""":class:`Executor`: an executor of :mod:`concurrent.futures` whose workers are children of this process.

``_collector`` takes its calls to their outcomes: ``_workers`` decides which worker runs which call, ``_batch`` does so for
executors that fork a child for each call. ``_worker`` and ``_task`` run calls in children.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from concurrent.futures import Executor as _Executor
from contextlib import suppress
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Callable, Iterable, Iterator, Literal, ParamSpec, Sequence, TypeVar, overload

from . import _output, _results, _task, _worker
from ._checkpoint import checkpoint_lock
from ._collector import Collector
from ._connection import require_no_child
from ._errors import Error
from ._future import ChildFuture
from ._options import ExecutorOptions, fork_fields, split_commas
from ._pickling import CallPickling, ForkedState
from ._seeding import make_seed
from ._shared import SharedObjects

P = ParamSpec("P")
T = TypeVar("T")

#: How many children live at once if each call has its own, unless the executor is told otherwise: enough to keep some
#: machines busy, few enough for their memory, as each has what it writes for itself.
FRESH_CHILDREN_MAX = 256

#: How many chunks each worker gets if the executor chooses their size: those that take longer than others are balanced.
_CHUNKS_PER_WORKER = 4


class Executor(_Executor):
    """Calls functions in children of this process, forked from its live state onto the nodes of the cluster.

    Up to ``max_workers`` children, the workers, are forked when the first calls are there, and run one call after the
    other. Without ``max_workers`` they are as many as this machine has processors, for each node in ``nodes``. Each
    worker calls ``initializer(*initargs)`` first. The calls for which workers are forked are not pickled, whatever they
    are: workers have this process's memory. Later calls are pickled for the workers that are there. If a call cannot be
    pickled, is larger than 16 MiB, or is of a function that was defined since, workers are forked anew, from the
    state of this moment. A worker keeps what its calls leave in its memory, and does not see what this process changes
    after the worker was forked. A call that refers to an object in ``shared`` does not pickle it: workers have it since
    they were forked, so this process must not change it. With ``reuse_workers=False``, each call has a child of its own, from the state of the
    moment when it was submitted.

    ``nodes`` are names of nodes, over which the children are spread in turn; without them, those with the fewest
    children are taken first. A child whose call runs for longer than ``timeout`` seconds is killed, and the call's future
    raises :class:`ChildTimeout`. A call whose worker died is run again up to ``retries`` times. What workers
    print is printed here with the worker's name before each line (``output="tagged"``), as it is (``"plain"``), or is only in
    the children's logs (``"log"``, and without ``reuse_workers``). What they log is handled by this process's loggers, or likewise. ``strategy`` says how
    memory comes, as ``farfork fork --strategy`` does: ``"cow"``, ``"prefetch"`` (the default) or ``"eager"``, and behind
    commas ``"cache"`` and ``"first"``. A child may use ``memory`` bytes of memory, which may be a text such as ``"512MiB"``,
    and ``cpus`` processors (0.5 is half of one); one that needs more memory is killed, and its call raises
    :class:`ChildDied`. It may have ``processes`` processes and threads; to start more fails. ``net`` says which network it has,
    as ``farfork fork --net`` does: ``"private"``, ``"shared"`` with the other children of its call on its node, or ``"host"``, its
    node's. From a private one it calls those in ``egress``, as ``farfork fork --egress`` has them: ``["any"]``, or networks and
    addresses like ``["10.1.0.0/16", "192.0.2.7:443"]``. With ``untrusted``, children have no capabilities, and are kept from
    devices and system calls that could lead out of their containers, as ``farfork fork --untrusted`` has it; with
    ``user_namespace`` besides, they are users that nobody else is on their nodes.

    Children end with this process, and so do the seeds that they come from.
    """

    #: As :class:`CallPickling` has it.
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
        if timeout is not None and timeout <= 0:
            raise ValueError("timeout must be more than 0 seconds, or None for none")
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
        """How many children may live at once."""
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
        """As :func:`map`, in workers; results come in order.

        The iterator raises :class:`concurrent.futures.TimeoutError` when a result is not there ``timeout`` seconds after this call, and
        what a call raised when its turn comes. ``chunksize`` calls in a row are sent to a worker together; with ``None``, so
        many that each worker gets about four times some. What is left when the iterator is closed or raises is cancelled.

        With ``return_exceptions``, what a call raised comes in its place, as an exception that is not raised, and so
        does the error of a child that gave no result: each call has its outcome, and one failure ends nothing else.
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
        """Takes no more calls. With ``cancel_futures``, cancels those that have not begun. With ``wait``, returns when all are over."""
        self._collector.shutdown(wait, cancel_futures)

    def cancel_all(self) -> None:
        """Cancels all calls; the children of those that run are killed."""
        self._collector.cancel_all()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Waits for all calls. After an interrupt of the block, or of the wait, the calls are cancelled."""
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
        """Whether workers have been forked, which have the shared objects of that moment."""
        return self._collector.has_workers

    def submit_to_workers(self, call: Callable[[], T]) -> ChildFuture[T] | None:
        """Pickles a call for workers that are there; ``None`` if this is not possible."""
        with self._collector.lock:
            self._collector.require_open()
            require_no_child()
            queued = self._collector.queue_pickled([call])
            return None if queued is None else queued[0]

    def interrupt(self, future: ChildFuture[Any]) -> None:
        """Raises :class:`KeyboardInterrupt` in a worker's call, if the worker allows it."""
        self._collector.interrupt(future)

    def _submit_calls(self, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        collector = self._collector
        with collector.lock:
            collector.require_open()
            if not calls:
                return []
            require_no_child()
            if self._reuse_workers and (queued := collector.queue_pickled(calls)) is not None:
                return queued
            # Before the checkpoint: a definition that changes meanwhile differs from these in any case.
            state = ForkedState(self._pickling.shared)
            child = make_seed()
            if child.is_child:
                if self._reuse_workers:
                    _worker.run_worker(child, calls, self._initializer, self._pickling, self._sends_records)
                # Nothing but this number crosses: the call is here already.
                index = int(child.payload) if child.has_payload else child.index
                _task.run_in_child(child, calls[index])
            try:
                if self._reuse_workers:
                    return collector.start_workers(child.id, state, len(calls))
                return collector.start_batch(child.id, len(calls))
            except BaseException:
                with suppress(Error, OSError):
                    child.drop()
                raise


#: Those of this process.
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _reset_executors() -> None:
    """A process that os.fork has made asks the daemon by itself: two would take each other's replies.

    A child of farfork has its parent's threads, and no use for this (``_hooks``).
    """
    for executor in list(_executors):
        executor._collector.reset_after_fork()


def _wait_for_calls() -> None:
    """As the executors of :mod:`concurrent.futures` do at the end of the program."""
    for executor in list(_executors):
        executor.shutdown()


atexit.register(_wait_for_calls)
os.register_at_fork(after_in_child=checkpoint_lock._at_fork_reinit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_reset_executors)
