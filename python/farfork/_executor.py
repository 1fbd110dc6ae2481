""":class:`Executor`: an executor of :mod:`concurrent.futures` whose workers are children of this process.

A collector thread reads the daemon's messages and completes the futures. ``_batch`` decides which calls are forked
next. ``_task`` runs a call in its child.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from concurrent.futures import Executor as _Executor
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Literal, ParamSpec, Sequence, TypeVar, overload

from . import _protocol, _task
from ._batch import Batch
from ._checkpoint import checkpoint, checkpoint_lock
from ._connection import Connection
from ._errors import ConnectionLost, Error
from ._future import ChildFuture
from ._protocol import Message, ProtocolError

P = ParamSpec("P")
T = TypeVar("T")

#: How many children of an executor live at once unless it is told otherwise: enough to keep some machines busy, few
#: enough for their memory, as each has what it writes for itself.
MAX_CHILDREN = 256

#: A seed that was made and not yet handed over to the executor's connection is dropped after so long, in seconds.
_HANDOVER_TTL_S = 60.0


class Executor(_Executor):
    """Calls functions in children of this process, forked from its live state onto the nodes of the cluster.

    ``nodes`` are names of nodes, over which the children are spread in turn; without them, those with the fewest
    children are taken first. At most ``max_children`` live at once. A child that runs for longer than ``timeout``
    seconds is killed, and its future raises :class:`ChildTimeout`. ``strategy`` says how their memory comes, as ``farfork fork
    --strategy`` does: ``"cow"``, ``"prefetch"`` (which is the default) or ``"eager"``, and behind commas ``"cache"`` and
    ``"first"``. A child may use ``memory`` bytes of memory, and ``cpus`` processors (0.5 is half of one); one that needs more
    memory is killed, and its future raises :class:`ChildDied`. It may have ``processes`` processes and threads; to start more fails.
    ``net`` says which network it has, as ``farfork fork --net`` does: ``"private"``, ``"shared"`` with the other children of its
    call on its node, or ``"host"``, its node's. From a private one it calls those in ``egress``, as ``farfork fork --egress`` has them:
    ``["any"]``, or networks and addresses like ``["10.1.0.0/16", "192.0.2.7:443"]``. With ``untrusted``, children have no capabilities, and are kept from
    devices and system calls that could lead out of their containers, as ``farfork fork --untrusted`` has it; with
    ``user_namespace`` besides, they are users that nobody else is on their nodes.

    Functions and arguments are not pickled: a child has this process's memory. Results and exceptions are.

    Children end with this process, and so do the seeds that they come from.
    """

    def __init__(
        self,
        nodes: Sequence[str] | None = None,
        *,
        max_children: int = MAX_CHILDREN,
        timeout: float | None = None,
        strategy: str = "",
        memory: int | None = None,
        cpus: float | None = None,
        processes: int | None = None,
        net: str = "private",
        egress: Sequence[str] = (),
        untrusted: bool = False,
        user_namespace: bool = False,
    ) -> None:
        if max_children < 1:
            raise ValueError("max_children must be 1 or more")
        if (memory is not None and memory < 1) or (cpus is not None and cpus < 0.001):
            raise ValueError("memory must be 1 byte or more, cpus 0.001 or more")
        if processes is not None and not 1 <= processes < 1 << 32:
            raise ValueError("processes must be 1 or more")
        if timeout is not None and timeout <= 0:
            raise ValueError("timeout must be more than 0 seconds, or None for none")
        if net not in _protocol.NETWORKS:
            raise ValueError(f"net must be one of {', '.join(_protocol.NETWORKS)}")
        if isinstance(egress, str):
            egress = egress.split(",")
        if isinstance(nodes, str):
            nodes = nodes.split(",")
        self._nodes = ",".join(nodes) if nodes else ""
        self._max_children = max_children
        # None is 0 there, and the shortest is a millisecond.
        self._timeout_ms = 0 if timeout is None else max(round(timeout * 1000), 1)
        self._strategy = strategy
        self._memory_bytes_max = memory or 0
        self._cpu_millicores_max = round((cpus or 0) * 1000)
        self._processes_max = processes or 0
        self._network = _protocol.NETWORKS[net]
        self._egress = ",".join(egress)
        self._flags = _protocol.FORK_OWNS_SEED | (0 if nodes else _protocol.FORK_ANY_NODE)
        if user_namespace and not untrusted:
            raise ValueError("user_namespace is for untrusted children")
        if untrusted:
            self._flags |= _protocol.FORK_UNTRUSTED
        if user_namespace:
            self._flags |= _protocol.FORK_USER_NAMESPACE
        # Held over a checkpoint, and never given back in a child: there the collector's thread stands still.
        self._changed = threading.Condition(threading.RLock())
        self._connection: Connection | None = None
        self._collector: threading.Thread | None = None
        self._batches: dict[int, Batch] = {}
        self._numbers = itertools.count(1)
        self._is_shut_down = False
        _executors.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> ChildFuture[T]:
        """Calls ``fn`` in a child. Each call is a checkpoint of its own: for many, :meth:`map` is the faster."""
        return self._submit_calls([partial(fn, *args, **kwargs)])[0]

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        return_exceptions: Literal[False] = False,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        return_exceptions: bool,
    ) -> Iterator[T | BaseException]: ...

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """As :func:`map`, each call in a child of one checkpoint; results come in order.

        The iterator raises :class:`concurrent.futures.TimeoutError` when a result is not there ``timeout`` seconds after this call, and
        what a call raised when its turn comes. ``chunksize`` calls in a row share a child. What is left when the
        iterator is closed or raises is cancelled.

        With ``return_exceptions``, what a call raised comes in its place, as an exception that is not raised, and so
        does the error of a child that gave no result: each call has its outcome, and one failure ends nothing else.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        end = None if timeout is None else time.monotonic() + timeout
        arguments = list(zip(*iterables))
        chunks = [arguments[first : first + chunksize] for first in range(0, len(arguments), chunksize)]
        call_chunk = _task.run_chunk if return_exceptions else _call_each
        futures = self._submit_calls([partial(call_chunk, fn, chunk) for chunk in chunks])
        if return_exceptions:
            return _outcomes_in_order(futures, [len(chunk) for chunk in chunks], end)
        return _results_in_order(futures, end)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. With ``wait``, returns when all are over; else calls that run are given up."""
        with self._changed:
            self._is_shut_down = True
            if cancel_futures or not wait:
                for batch in list(self._batches.values()):
                    for future in batch.futures:
                        future.cancel()
            while wait and self._batches:
                self._changed.wait()
            if self._connection is not None:
                self._connection.shutdown()
        if wait and self._collector not in (None, threading.current_thread()):
            assert self._collector is not None
            self._collector.join()

    def _submit_calls(self, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not calls:
                return []
            seed_or_child = checkpoint(ttl=_HANDOVER_TTL_S)
            if seed_or_child.is_child:
                child = seed_or_child
                # Nothing but this number crosses: the call is here already.
                index = int(child.payload) if child.has_payload else child.index
                _task.run_in_child(child, calls[index])
            number = next(self._numbers)
            futures: list[ChildFuture[Any]] = [
                ChildFuture(partial(self._cancel_call, number, index)) for index in range(len(calls))
            ]
            try:
                self._connect()
                batch = Batch(number, seed_or_child.id, futures)
                self._batches[number] = batch
                self._fork_ready(batch)
            except OSError as error:
                self._batches.pop(number, None)
                raise ConnectionLost(f"the node's daemon: {error}") from None
            return futures

    def _connect(self) -> Connection:
        if self._connection is None:
            # Until the daemon knows it, another thread's checkpoint would be refused because of it.
            with checkpoint_lock:
                connection = Connection()
                connection.send(_protocol.HELLO)
                reply = connection.receive()
                if reply is None or reply[0].kind != _protocol.WELCOME:
                    connection.close()
                    raise OSError(reply[0].get("text") if reply else "it closed the connection")
            self._connection = connection
            name = "farfork-executor"
            self._collector = threading.Thread(target=self._run_collector, args=(connection,), name=name, daemon=True)
            self._collector.start()
        return self._connection

    def _fork_ready(self, batch: Batch) -> None:
        """Asks for as many children of a batch as may live."""
        while True:
            living = sum(len(other.living) for other in self._batches.values())
            calls = batch.allocate(self._max_children - living)
            if not calls:
                return
            # A child's own index counts from 0 in each fork; of the first fork it is that of its call.
            payload_flag = _protocol.FORK_NO_PAYLOAD if calls.start == 0 else 0
            self._connect().send(
                _protocol.FORK,
                batch=batch.number,
                first=calls.start,
                count=len(calls),
                flags=self._flags | payload_flag,
                timeout_ms=self._timeout_ms,
                seed=batch.seed,
                nodes=self._nodes,
                strategy=self._strategy,
                memory_bytes_max=self._memory_bytes_max,
                cpu_millicores_max=self._cpu_millicores_max,
                processes_max=self._processes_max,
                network=self._network,
                egress=self._egress,
            )

    def _cancel_call(self, number: int, index: int) -> None:
        """A call was cancelled."""
        with self._changed:
            batch = self._batches.get(number)
            if batch is None:
                return
            try:
                if index in batch.living:
                    self._connect().send(_protocol.KILL, batch=number, index=index)
                self._schedule()
            except OSError:
                pass  # The collector finds it out.

    def _schedule(self) -> None:
        """Forks what there is room for now, and forgets the batches that are over."""
        for batch in list(self._batches.values()):
            self._fork_ready(batch)
            if batch.is_over:
                del self._batches[batch.number]
                self._connect().send(_protocol.DROP, seed=batch.seed)
        self._changed.notify_all()

    def _run_collector(self, connection: Connection) -> None:
        """The collector's thread: takes what the daemon says until there is nothing more."""
        cause = "it ended the connection"
        try:
            while (reply := connection.receive(limit_s=None)) is not None:
                with self._changed:
                    complete = self._handle_message(*reply)
                # What is called back may wait for others that wait for the lock.
                complete()
        except Exception as failure:
            cause = str(failure)
        with self._changed:
            connection.close()
            self._connection = None
            lost = [future for batch in self._batches.values() for future in batch.futures]
            self._batches.clear()
            self._changed.notify_all()
        for future in lost:
            error = ConnectionLost(f"the node's daemon: {cause}; see its log")
            future.complete(partial(_raise, error))

    def _handle_message(self, message: Message, fds: list[int]) -> Callable[[], None]:
        """Takes a message. Returns what is to be done without the lock."""
        batch = self._batches.get(message.get("batch", 0))
        if batch is None:
            raise ProtocolError(message.get("text", f"a message of kind {message.kind}"))
        if message.kind == _protocol.STARTED:
            if batch.handle_started(message):
                self._connect().send(_protocol.KILL, batch=batch.number, index=message["index"])
        elif message.kind in (_protocol.ENDED, _protocol.FAILED):
            complete = batch.handle_ended(message, fds)
            self._schedule()
            return complete
        return _no_op

    def _reset_after_fork(self) -> None:
        """In a process that os.fork has made: the connection, its thread and the calls that run are the parent's."""
        self._changed = threading.Condition(threading.RLock())
        if self._connection is not None:
            self._connection.close()
        self._connection = self._collector = None
        self._batches = {}


#: Those of this process.
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _reset_executors() -> None:
    """A process that os.fork has made asks the daemon by itself: two would take each other's replies.

    A child of farfork has its parent's threads, and no use for this (``_hooks``).
    """
    for executor in list(_executors):
        executor._reset_after_fork()


os.register_at_fork(after_in_child=checkpoint_lock._at_fork_reinit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_reset_executors)


def _call_each(fn: Callable[..., T], chunk: list[tuple[Any, ...]]) -> list[T]:
    return [fn(*arguments) for arguments in chunk]


def _results_in_order(futures: list[ChildFuture[list[T]]], end: float | None) -> Iterator[T]:
    pending = futures[::-1]
    futures = []  # A result that has been taken need not be kept.
    try:
        while pending:
            results = pending[-1].result(_remaining_s(end))
            pending.pop()
            yield from results
    finally:
        for future in pending:
            future.cancel()


def _outcomes_in_order(
    futures: list[ChildFuture[list[bytes]]], sizes: list[int], end: float | None
) -> Iterator[Any | BaseException]:
    pending, sizes = futures[::-1], sizes[::-1]
    futures = []
    try:
        while pending:
            size = sizes.pop()
            error = pending[-1].exception(_remaining_s(end))
            results = [] if error else pending[-1].result()
            pending.pop()
            yield from (_task.value_or_error(result) for result in results)
            # A child that died took all of its calls along.
            if error is not None:
                yield from [error] * size
    finally:
        for future in pending:
            future.cancel()


def _remaining_s(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def _no_op() -> None:
    pass


def _raise(error: Error) -> None:
    raise error
