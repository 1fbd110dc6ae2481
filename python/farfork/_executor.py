""":class:`Executor`: an executor of :mod:`concurrent.futures` whose workers are children of this process.

A collector thread reads the daemon's messages and the workers' channels, and completes the futures. ``_workers`` decides
which worker runs which call; ``_batch`` does so for executors that fork a child for each call. ``_worker`` and ``_task``
run calls in children.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
import threading
import time
import weakref
from concurrent.futures import Executor as _Executor
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Literal, ParamSpec, Sequence, TypeVar, overload

from . import _options, _output, _protocol, _results, _task, _worker
from ._batch import Batch
from ._channel import Payload, WakePipe
from ._checkpoint import Child, Seed, checkpoint, checkpoint_lock
from ._connection import Connection, require_no_child
from ._errors import CheckpointError, ConnectionLost, Error
from ._future import ChildFuture
from ._pickling import ForkedModules, NotShared, pickle_call
from ._protocol import Message, ProtocolError
from ._workers import Completion, Worker, WorkerPool, WorkerSeed

P = ParamSpec("P")
T = TypeVar("T")

#: How many children live at once if each call has its own, unless the executor is told otherwise: enough to keep some
#: machines busy, few enough for their memory, as each has what it writes for itself.
FRESH_CHILDREN_MAX = 256

#: How many chunks each worker gets if the executor chooses their size: those that take longer than others are balanced.
_CHUNKS_PER_WORKER = 4

#: A checkpoint fails while another thread opens and closes files; so many are tried.
_CHECKPOINTS_MAX = 5

#: A seed that was made and not yet handed over to the executor's connection is dropped after so long, in seconds.
_HANDOVER_TTL_S = 60.0


class Executor(_Executor):
    """Calls functions in children of this process, forked from its live state onto the nodes of the cluster.

    Up to ``max_workers`` children, the workers, are forked when the first calls are there, and run one call after the
    other. Without ``max_workers`` they are as many as this machine has processors, for each node in ``nodes``. Each
    worker calls ``initializer(*initargs)`` first. The calls for which workers are forked are not pickled, whatever they
    are: workers have this process's memory. Later calls are pickled for the workers that are there. If a call cannot be
    pickled, is larger than 16 MiB, or is of a function that was defined since, workers are forked anew, from the
    state of this moment. A worker keeps what its calls leave in its memory, and does not see what this process changes
    after the worker was forked. With ``reuse_workers=False``, each call has a child of its own, from the state of the
    moment when it was submitted.

    ``nodes`` are names of nodes, over which the children are spread in turn; without them, those with the fewest
    children are taken first. A child whose call runs for longer than ``timeout`` seconds is killed, and the call's future
    raises :class:`ChildTimeout`. A call whose worker died is run again up to ``retries`` times. What workers
    print is printed here with the worker's name before each line (``output="tagged"``), as it is (``"plain"``), or is only in
    the children's logs (``"log"``, and without ``reuse_workers``). ``strategy`` says how
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

    def __init__(
        self,
        nodes: Sequence[str] | None = None,
        *,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
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
        self._nodes = _options.split_commas(nodes)
        self._forked_count = 0
        self._fork_fields = _options.fork_fields(
            self._nodes, strategy, memory, cpus, processes, net, egress, untrusted, user_namespace
        )
        self._reuse_workers = reuse_workers
        default_max = (os.cpu_count() or 1) * max(len(self._nodes), 1) if reuse_workers else FRESH_CHILDREN_MAX
        self._children_max = max_workers or default_max
        self._timeout = timeout
        self._retries = retries
        self._output = output
        self._initializer = partial(initializer, *initargs) if initializer else None
        # Held over a checkpoint, and never given back in a child: there the collector's thread stands still. `with` takes the lock
        # itself, and not the condition: an exception of a signal handler would leave that locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_shut_down = False
        self._numbers = itertools.count(1)
        self._reset()
        _executors.add(self)

    def _reset(self) -> None:
        """As at first: not connected, without calls."""
        self._connection: Connection | None = None
        self._collector: threading.Thread | None = None
        self._wake: WakePipe | None = None
        self._poller = select.poll()
        self._watched: dict[int, Worker] = {}
        self._batches: dict[int, Batch] = {}
        self._pool = WorkerPool(self, self._children_max, self._timeout, self._output)

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
        with self._lock:
            self._is_shut_down = True
            waiting = [] if not cancel_futures else self._pool.queued_futures
            for batch in self._batches.values() if cancel_futures else ():
                waiting += [future for future in batch.futures if not future.running()]
        for future in waiting:
            future.cancel()
        with self._lock:
            self._end_if_idle()
            # What is called back by the collector cannot wait for it.
            wait = wait and self._collector is not threading.current_thread()
            while wait and not self._is_idle:
                self._changed.wait()
        if wait and self._collector is not None:
            self._collector.join()

    @property
    def _is_idle(self) -> bool:
        return not self._batches and self._pool.is_idle

    def _end_if_idle(self) -> None:
        """After the last call of an executor that takes no more, its children end with the connection."""
        if self._is_shut_down and self._is_idle and self._connection is not None:
            self._connection.shutdown()

    def _submit_calls(self, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not calls:
                return []
            require_no_child()
            payloads = self._pickle_for_workers(calls) if self._reuse_workers else None
            if payloads is not None:
                futures = [self._pool.add_task(payload, None, self._retries) for payload in payloads]
                self._wake_collector()
                return futures
            seed_or_child = _make_seed()
            if seed_or_child.is_child:
                child = seed_or_child
                if self._reuse_workers:
                    _worker.run_worker(child, calls, self._initializer)
                # Nothing but this number crosses: the call is here already.
                index = int(child.payload) if child.has_payload else child.index
                _task.run_in_child(child, calls[index])
            start = self._start_workers if self._reuse_workers else self._start_batch
            return start(seed_or_child.id, calls)

    def _pickle_for_workers(self, calls: list[_task.Call]) -> list[Payload] | None:
        """The calls for workers that are there; ``None`` if workers are to be forked for them."""
        self._pool.require_working()
        seed = self._pool.newest_seed
        try:
            return None if seed is None else [pickle_call(call, seed.modules) for call in calls]
        except NotShared:
            return None

    def _start_workers(self, seed_id: str, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        seed = WorkerSeed(next(self._numbers), seed_id, ForkedModules())
        try:
            # It ends with the connection, even if no worker can be forked before others have ended.
            self._connect().send(_protocol.FORK, batch=seed.batch, seed=seed.id, **self._fork_fields)
        except OSError as error:
            raise ConnectionLost(f"the node's daemon: {error}") from None
        self._pool.add_seed(seed)
        futures = [
            self._pool.add_task(Payload(str(index).encode()), seed, self._retries) for index in range(len(calls))
        ]
        self._wake_collector()
        return futures

    def _wake_collector(self) -> None:
        """The collector's thread alone sends to workers: an exception of a signal handler would divide what another one sends."""
        if self._wake is not None:
            self._wake.wake()

    def _start_batch(self, seed_id: str, calls: list[_task.Call]) -> list[ChildFuture[Any]]:
        """Starts a child for each call."""
        number = next(self._numbers)
        futures: list[ChildFuture[Any]] = [
            ChildFuture(partial(self._cancel_call, number, index)) for index in range(len(calls))
        ]
        try:
            self._connect()
            batch = Batch(number, seed_id, futures)
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
            self._wake = WakePipe()
            self._poller = select.poll()
            for watched in (connection, self._wake):
                self._poller.register(watched, select.POLLIN)
            name = "farfork-executor"
            self._collector = threading.Thread(target=self._run_collector, args=(connection,), name=name, daemon=True)
            self._collector.start()
        return self._connection

    def _fork_ready(self, batch: Batch) -> None:
        """Asks for as many children of a batch as may live."""
        while True:
            living = sum(len(other.living) for other in self._batches.values())
            calls = batch.allocate(self._children_max - living)
            if not calls:
                return
            # A child's own index counts from 0 in each fork; of the first fork it is that of its call.
            payload_flag = _protocol.FORK_NO_PAYLOAD if calls.start == 0 else 0
            # None is 0 there, and the shortest is a millisecond.
            timeout_ms = 0 if self._timeout is None else max(round(self._timeout * 1000), 1)
            self._fork(batch.number, batch.seed, calls.start, len(calls), payload_flag, timeout_ms)

    def _fork(self, batch: int, seed: str, first: int, count: int, flag: int, timeout_ms: int = 0) -> None:
        fields = {**self._fork_fields, "flags": self._fork_fields["flags"] | flag}
        if self._nodes:
            # A request starts at its first node. This one continues after the last one.
            turn = self._forked_count % len(self._nodes)
            fields["nodes"] = ",".join(self._nodes[turn:] + self._nodes[:turn])
        self._forked_count += count
        self._connect().send(
            _protocol.FORK, batch=batch, seed=seed, first=first, count=count, timeout_ms=timeout_ms, **fields
        )

    # ---- what the pool of workers asks for

    def fork_workers(self, seed: WorkerSeed, first: int, count: int) -> None:
        self._fork(seed.batch, seed.id, first, count, _protocol.FORK_CHANNEL)

    def kill_worker(self, worker: Worker) -> None:
        self._connect().send(_protocol.KILL, batch=worker.seed.batch, index=worker.index)

    def drop_seed(self, seed: WorkerSeed) -> None:
        self._connect().send(_protocol.DROP, seed=seed.id)

    def watch_channel(self, worker: Worker) -> None:
        """Polls a worker's channel for input, and for room while something is left to be sent."""
        channel = worker.channel
        assert channel is not None
        self._poller.register(channel, select.POLLIN | (select.POLLOUT if channel.has_outgoing else 0))
        self._watched[channel.fileno()] = worker

    def forget_channel(self, worker: Worker) -> None:
        assert worker.channel is not None
        self._poller.unregister(worker.channel)
        del self._watched[worker.channel.fileno()]

    def cancel_task(self, number: int) -> None:
        """The future of a worker's call was cancelled."""
        with self._lock:
            try:
                self._pool.cancel(number)
                self._wake_collector()
            except OSError:
                pass  # The collector finds it out.

    def _cancel_call(self, number: int, index: int) -> None:
        """A call was cancelled."""
        with self._lock:
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
        """Has children run what there is room for now, and forgets the batches that are over."""
        for batch in list(self._batches.values()):
            self._fork_ready(batch)
            if batch.is_over:
                del self._batches[batch.number]
                self._connect().send(_protocol.DROP, seed=batch.seed)
        if self._connection is not None:
            try:
                self._pool.schedule()
            except OSError:
                pass  # The collector finds it out.
        self._end_if_idle()
        self._changed.notify_all()

    def _run_collector(self, connection: Connection) -> None:
        """The collector's thread: takes what the daemon and the workers say until the daemon says no more."""
        cause = "it ended the connection"
        try:
            while self._collect(connection):
                pass
        except Exception as failure:
            cause = str(failure)
        with self._lock:
            error = ConnectionLost(f"the node's daemon: {cause}; see its log")
            futures = [future for batch in self._batches.values() for future in batch.futures]
            lost = [partial(future.complete, partial(_raise, error)) for future in futures] + self._pool.fail_all(error)
            self._disconnect()
            self._changed.notify_all()
        for complete in lost:
            complete()

    def _collect(self, connection: Connection) -> bool:
        """Waits for something to do, and does it. Returns whether the daemon may have more to say."""
        deadline = self._pool.next_deadline()
        timeout_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 1
        ready = self._poller.poll(timeout_ms)
        completions: list[Completion] = []
        is_connected = True
        _stand_still_in_call_child()
        # A capture is told the open files: none is received or closed meanwhile.
        with self._lock, checkpoint_lock:
            assert self._wake is not None
            for fd, _ in ready:
                if fd == self._wake.fileno():
                    self._wake.clear()
                elif fd == connection.fileno():
                    reply = connection.receive(limit_s=None)
                    is_connected = reply is not None
                    completions += self._handle_message(*reply) if reply else []
                elif worker := self._watched.get(fd):
                    completions += self._handle_channel(worker)
            completions += self._pool.handle_deadlines()
            if is_connected and (ready or completions):
                self._schedule()
        # What is called back may wait for others that wait for the lock.
        for complete in completions:
            complete()
        return is_connected

    def _handle_channel(self, worker: Worker) -> list[Completion]:
        completions = self._pool.handle_channel(worker)
        if worker.channel is not None:
            self.watch_channel(worker)
        return completions

    def _handle_message(self, message: Message, fds: list[int]) -> list[Completion]:
        """Takes a message. Returns what is to be done without the lock."""
        number = message.get("batch", 0)
        if self._pool.has_batch(number):
            return self._handle_worker_message(message, fds)
        batch = self._batches.get(number)
        if batch is None:
            raise ProtocolError(message.get("text", f"a message of kind {message.kind}"))
        if message.kind == _protocol.STARTED:
            if batch.handle_started(message):
                self._connect().send(_protocol.KILL, batch=batch.number, index=message["index"])
        elif message.kind in (_protocol.ENDED, _protocol.FAILED):
            return [batch.handle_ended(message, fds)]
        return []

    def _handle_worker_message(self, message: Message, fds: list[int]) -> list[Completion]:
        if message.kind == _protocol.STARTED:
            self._pool.handle_started(message, fds)
            return []
        for fd in fds:
            os.close(fd)
        return self._pool.handle_failed(message) if message.kind == _protocol.FAILED else self._pool.handle_ended(message)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._wake is not None:
            self._wake.close()
        self._connection = self._wake = None
        self._batches.clear()

    def _reset_after_fork(self) -> None:
        """In a process that os.fork has made: the connection, its thread and the calls that run are the parent's."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pool.fail_all(RuntimeError("a call of the parent process"))
        self._disconnect()
        self._reset()


#: Whether this process is a child that runs calls of an executor.
_is_call_child = False

#: Those of this process.
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _reset_executors() -> None:
    """A process that os.fork has made asks the daemon by itself: two would take each other's replies.

    A child of farfork has its parent's threads, and no use for this (``_hooks``).
    """
    for executor in list(_executors):
        executor._reset_after_fork()


def _make_seed() -> Seed | Child:
    """A checkpoint. Another thread may open or close a file meanwhile, which is over soon."""
    global _is_call_child
    for attempt in range(_CHECKPOINTS_MAX):
        try:
            with checkpoint_lock:
                seed_or_child = checkpoint(ttl=_HANDOVER_TTL_S)
                _is_call_child = seed_or_child.is_child
            return seed_or_child
        except CheckpointError as error:
            if "keeps changing" not in str(error) or attempt == _CHECKPOINTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _stand_still_in_call_child() -> None:
    """In a child of an executor, all calls are the parent's, and so are the threads that wait for them: they learn nothing."""
    with checkpoint_lock:
        is_call_child = _is_call_child
    while is_call_child:
        time.sleep(3600)


def _wait_for_calls() -> None:
    """As the executors of :mod:`concurrent.futures` do at the end of the program."""
    for executor in list(_executors):
        executor.shutdown()


atexit.register(_wait_for_calls)
os.register_at_fork(after_in_child=checkpoint_lock._at_fork_reinit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_reset_executors)


def _raise(error: Error) -> None:
    raise error
