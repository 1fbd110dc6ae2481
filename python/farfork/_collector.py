"""The calls of an executor, from their submission to their outcome.

A thread of each connected executor reads the daemon's messages and the workers' channels, sends to the workers, and
completes the futures::

    Executor ──▶ Collector ─┬─ WorkerPool: workers that run call after call
                            └─ Batch: a child for each call of one checkpoint
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
import traceback
from functools import partial
from typing import Any

from . import _channel, _protocol, _task
from ._batch import Batch
from ._channel import Payload, WakePipe
from ._checkpoint_lock import Completion, CompletionRunner, checkpoint_lock
from ._connection import Connection
from ._copied_threads import copies_stand_still, refuse_copied_thread
from ._errors import ConnectionLost, Error
from ._future import ChildFuture, unlock_completing
from ._options import ExecutorOptions
from ._pickling import CallPickling, ForkedState, NotShared
from ._protocol import Message, ProtocolError
from ._workers import Worker, WorkerPool, WorkerSeed

#: Interval between two checks whether an interrupt has left the thread blocked, in seconds.
_JOIN_INTERVAL_S = 0.1


class Collector:
    """The calls of one executor that have not ended."""

    def __init__(self, options: ExecutorOptions, pickling: CallPickling) -> None:
        self._options = options
        self._pickling = pickling
        self._forked_count = 0
        self._is_shut_down = False
        self._numbers = itertools.count(1)
        self._reset()

    def _reset(self) -> None:
        """Sets the initial state: not connected, without calls."""
        #: Held during a checkpoint of this executor. In a child, the lock is never released, because the thread that holds
        #: it runs calls until the child ends.
        self.lock = threading.RLock()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._wake: WakePipe | None = None
        self._poller = select.poll()
        self._watched: dict[int, Worker] = {}
        self._batches: dict[int, Batch] = {}
        self._pool = WorkerPool(self, self._options)

    # ---- calls; callers of `queue_pickled`, `start_workers` and `start_batch` hold the lock

    def require_open(self) -> None:
        """Raises :class:`RuntimeError` after a shutdown. The lock is needed only by a caller that then adds calls."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    @property
    def has_workers(self) -> bool:
        """Whether there are workers for which new calls can be pickled."""
        return self._pool.newest_seed is not None

    def queue_pickled(self, calls: list[_task.Call]) -> list[ChildFuture[Any]] | None:
        """Queues calls for existing workers; ``None`` if workers must be forked for them."""
        self._pool.require_working()
        seed = self._pool.newest_seed
        if seed is None:
            return None
        try:
            payloads = self._pickling.pickle_calls(calls, seed.state)
        except NotShared:
            return None
        futures = [self._pool.add_task(payload, seed, _channel.PICKLED_CALL) for payload in payloads]
        self._wake_thread()
        return futures

    def start_workers(self, seed_id: str, state: ForkedState, calls_count: int) -> list[ChildFuture[Any]]:
        """Queues the calls for which a seed was made."""
        seed = WorkerSeed(next(self._numbers), seed_id, state)
        try:
            # A request for no children binds the seed to the connection. Its workers may be requested later, because workers
            # of older seeds must end first.
            self._fork(seed.batch, seed.id, range(0), 0)
        except OSError as error:
            raise _connection_lost(error) from None
        self._pool.add_seed(seed)
        futures = [self._pool.add_task(Payload(str(index).encode()), seed, _channel.CALL_OF_SEED) for index in range(calls_count)]
        self._wake_thread()
        return futures

    def start_batch(self, seed_id: str, calls_count: int) -> list[ChildFuture[Any]]:
        """Requests a child for each call for which a seed was made, as far as the limit permits now."""
        number = next(self._numbers)
        futures: list[ChildFuture[Any]] = [
            ChildFuture(partial(self._cancel_call, number, index)) for index in range(calls_count)
        ]
        try:
            self._connect()
            batch = self._batches[number] = Batch(number, seed_id, futures)
            self._fork_ready(batch)
        except OSError as error:
            self._batches.pop(number, None)
            raise _connection_lost(error) from None
        return futures

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        """Like :meth:`Executor.shutdown`."""
        with self.lock:
            self._is_shut_down = True
            waiting = [] if not cancel_futures else self._pool.queued_futures
            for batch in self._batches.values() if cancel_futures else ():
                waiting += [future for future in batch.futures if not future.running()]
            waiting += self._half_cancelled()
        for future in waiting:
            future.cancel()
        with self.lock:
            self._wake_thread()
            thread = self._thread
        # A callback that runs in the thread cannot wait for the thread.
        if wait and thread is not None and thread is not threading.current_thread():
            self._join(thread)

    def _join(self, thread: threading.Thread) -> None:
        """Waits until the thread has ended, which it does after the last call."""
        while thread.is_alive():
            thread.join(_JOIN_INTERVAL_S)
            if unlock_completing(thread):
                # The same interrupt may have left other futures locked.
                with self.lock:
                    for future in self._futures:
                        future.unlock()

    @property
    def _futures(self) -> list[ChildFuture[Any]]:
        """The futures of calls that have not ended."""
        return self._pool.futures + [future for batch in self._batches.values() for future in batch.futures]

    def _half_cancelled(self) -> list[ChildFuture[Any]]:
        """Cancelled futures whose calls still run, because an interrupt has ended ``cancel``."""
        futures = self._pool.futures
        futures += [batch.futures[index] for batch in self._batches.values() for index in batch.living]
        return [future for future in futures if future.cancelled()]

    def cancel_all(self) -> None:
        """Cancels all calls, including running ones."""
        with self.lock:
            futures = self._futures
        for future in futures:
            future.cancel()

    def interrupt(self, future: ChildFuture[Any]) -> None:
        """Requests the interrupt of a worker's call."""
        with self.lock:
            self._pool.request_interrupt(future)
            self._wake_thread()

    def disconnect(self) -> None:
        """Ends the connection, and with it all children. Takes no lock. In a child it does nothing."""
        if self._connection is not None:
            self._connection.shutdown()

    @property
    def _is_idle(self) -> bool:
        return not self._batches and self._pool.is_idle

    def _end_if_idle(self) -> None:
        """Ends the connection, and so the children, after the last call of an executor that was shut down.

        Only the thread calls this, when no completion runs. The connection's end also ends the channels of workers, and a
        process with such a channel cannot be captured. So a callback could not fork.
        """
        if self._is_shut_down and self._is_idle and self._connection is not None:
            self._connection.shutdown()

    def _connect(self) -> Connection:
        if self._connection is None:
            # The daemon refuses a checkpoint of a process with a connection that it does not know yet. So no other thread
            # may make a checkpoint before HELLO.
            with checkpoint_lock:
                connection = Connection()
                connection.send(_protocol.HELLO)
                reply = connection.receive()
                if reply is None or reply[0].kind != _protocol.WELCOME:
                    connection.close()
                    raise OSError(reply[0].get("text") if reply else "it closed the connection")
                self._start_thread(connection)
            # Set this last: an executor with a connection must have a thread.
            self._connection = connection
        return self._connection

    def _start_thread(self, connection: Connection) -> None:
        """Starts the thread, which waits for the lock."""
        self._wake = WakePipe()
        try:
            self._poller = select.poll()
            for watched in (connection, self._wake):
                self._poller.register(watched, select.POLLIN)
            name = "farfork-executor"
            self._thread = threading.Thread(target=self._run, args=(connection,), name=name, daemon=True)
            self._thread.start()
        except BaseException:
            connection.close()
            self._wake.close()
            self._wake = self._thread = None
            raise

    def _wake_thread(self) -> None:
        """Wakes the thread. Only this thread sends to workers: in another thread, a signal handler's exception could end a
        send in the middle of a frame.
        """
        if self._wake is not None:
            self._wake.wake()

    def _fork_ready(self, batch: Batch) -> None:
        """Requests as many children of a batch as the limit permits."""
        while True:
            living = sum(len(other.living) for other in self._batches.values())
            calls = batch.allocate(self._options.children_max - living)
            if not calls:
                return
            # A child's own index counts from 0 in each fork. Only in the first fork does it equal the index of the call.
            flag = _protocol.FORK_NO_PAYLOAD if calls.start == 0 else 0
            timeout = self._options.timeout
            # In the request, 0 means no timeout, and the shortest timeout is a millisecond.
            timeout_ms = 0 if timeout is None else max(round(timeout * 1000), 1)
            self._fork(batch.number, batch.seed, calls, flag, timeout_ms)

    def _fork(self, batch: int, seed: str, children: range, flag: int, timeout_ms: int = 0) -> None:
        fields = {**self._options.fork_fields, "flags": self._options.fork_fields["flags"] | flag}
        if nodes := self._options.nodes:
            # The daemon starts at the first node of a request. Rotate the nodes, so that it continues after the last used
            # one.
            turn = self._forked_count % len(nodes)
            fields["nodes"] = ",".join(nodes[turn:] + nodes[:turn])
        self._forked_count += len(children)
        fields |= {"first": children.start, "count": len(children), "timeout_ms": timeout_ms}
        self._connect().send(_protocol.FORK, batch=batch, seed=seed, **fields)

    # ---- called by the pool of workers

    def fork_workers(self, seed: WorkerSeed, indices: range) -> None:
        self._fork(seed.batch, seed.id, indices, _protocol.FORK_CHANNEL)

    def kill_worker(self, worker: Worker, keeps_log: bool = False) -> None:
        flags = _protocol.KILL_KEEPS_CHILD if keeps_log else 0
        self._connect().send(_protocol.KILL, batch=worker.seed.batch, index=worker.index, flags=flags)

    def drop_seed(self, seed: WorkerSeed) -> None:
        self._connect().send(_protocol.DROP, seed=seed.id)

    def watch_channel(self, worker: Worker) -> None:
        """Polls a worker's channel for input, and for output while a part of a frame is unsent."""
        channel = worker.channel
        assert channel is not None
        self._poller.register(channel, select.POLLIN | (select.POLLOUT if channel.has_outgoing else 0))
        self._watched[channel.fileno()] = worker

    def forget_channel(self, worker: Worker) -> None:
        assert worker.channel is not None
        self._poller.unregister(worker.channel)
        del self._watched[worker.channel.fileno()]

    def cancel_task(self, number: int) -> None:
        """Handles the cancellation of a worker's call."""
        with self.lock:
            try:
                self._pool.cancel(number)
                self._wake_thread()
            except OSError:
                pass  # The thread detects that the daemon has ended.

    def _cancel_call(self, number: int, index: int) -> None:
        """Handles the cancellation of a call of a batch."""
        with self.lock:
            batch = self._batches.get(number)
            if batch is None:
                return
            try:
                if index in batch.living:
                    self._connect().send(_protocol.KILL, batch=number, index=index)
                self._schedule()
                self._wake_thread()
            except OSError:
                pass  # The thread detects that the daemon has ended.

    def _schedule(self) -> None:
        """Forks as many children as the limit permits, and removes batches that have ended."""
        for batch in list(self._batches.values()):
            self._fork_ready(batch)
            if batch.is_over:
                del self._batches[batch.number]
                self._connect().send(_protocol.DROP, seed=batch.seed)
        if self._connection is not None:
            try:
                self._pool.schedule()
            except OSError:
                pass  # The thread detects that the daemon has ended.

    # ---- the thread

    @copies_stand_still
    def _run(self, connection: Connection) -> None:
        """Handles messages of the daemon and the workers until the daemon's connection ends."""
        error = _connection_lost("it closed the connection; see its log")
        runner = CompletionRunner()
        try:
            while self._collect(connection, runner):
                pass
        except (OSError, ProtocolError) as failure:
            error = _connection_lost(f"{failure}; see its log")
        except Exception as failure:
            # A defect of this package, or no memory for a small object. What was handled in part cannot be continued.
            traceback.print_exc()
            error = ConnectionLost(f"the executor has disconnected: {type(failure).__name__}: {failure}")
        # This block closes descriptors.
        with self.lock, checkpoint_lock:
            refuse_copied_thread()
            futures = [future for batch in self._batches.values() for future in batch.futures]
            lost: list[Completion] = [partial(future.complete, partial(_raise, error)) for future in futures]
            lost += self._pool.fail_all(error)
            self._disconnect()
        runner.run(lost)

    def _collect(self, connection: Connection, runner: CompletionRunner) -> bool:
        """Waits for events and handles them. Returns whether the thread continues: not if the daemon has ended the connection,
        and not in a process that a callback has forked.
        """
        with self.lock:
            deadline = self._pool.next_deadline()
        timeout_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 1
        ready = self._poller.poll(timeout_ms)
        completions: list[Completion] = []
        is_connected = True
        # checkpoint_lock prevents a capture, which requires that the open files do not change: this block receives and
        # closes descriptors.
        with self.lock, checkpoint_lock:
            # In a worker, this thread is a copy, and the calls belong to the program.
            refuse_copied_thread()
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
        runner.run(completions)
        with self.lock:
            refuse_copied_thread()
            if self._connection is not connection:
                return False
            self._end_if_idle()
        return is_connected

    def _handle_channel(self, worker: Worker) -> list[Completion]:
        completions = self._pool.handle_channel(worker)
        if worker.channel is not None:
            self.watch_channel(worker)
        return completions

    def _handle_message(self, message: Message, fds: list[int]) -> list[Completion]:
        """Handles a message. Returns the completions, which run without the lock."""
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

    def reset_after_fork(self) -> None:
        """Resets a process that os.fork made: the connection, its thread and the running calls belong to the parent."""
        self._pool.abandon()
        self._disconnect()
        self._reset()


def _connection_lost(cause: object) -> ConnectionLost:
    return ConnectionLost(f"the node's daemon: {cause}")


def _raise(error: Error) -> None:
    raise error
