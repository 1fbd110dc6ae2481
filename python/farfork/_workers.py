"""The workers of an executor: which worker runs which task, when workers are forked, and when they end.

All methods are called with the collector's lock held. ``_collector`` passes the daemon's messages and ready channels to
this module, and completes futures with what these methods return.

::

    call ──▶ queue ──▶ idle worker of its seed ──▶ outcome ──▶ future
              │                                       ▲
              └── no worker is idle: fork one ────────┘ its worker died: ChildDied, or the queue again (retries)
"""

from __future__ import annotations

import os
import time
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Iterable, Protocol

from . import _channel, _display, _logging, _protocol, _task
from ._batch import death_error
from ._channel import Channel, Frame, Payload
from ._checkpoint_lock import Completion
from ._errors import ChildDied, ChildNotStarted, ChildTimeout, InitializerFailed, OutOfMemory
from ._future import ChildFuture
from ._options import ExecutorOptions
from ._output import OutputPrinter
from ._pickling import ForkedState
from ._protocol import Message
from ._task_queue import TaskQueue

#: Longest wait for the next piece of the data that a worker sent before its end, in seconds.
_LAST_PIECE_S = 10.0


@dataclass(eq=False)
class WorkerSeed:
    """A seed from which workers are forked, with the calls for which it was made."""

    batch: int
    id: str
    state: ForkedState
    #: Workers that were requested and have not ended, by index.
    workers: dict[int, Worker] = field(default_factory=dict)
    next_index: int = 0
    #: Whether a worker could not be started while others live. The others then do the work.
    is_short: bool = False
    #: Number of calls of this seed that have not ended. Those that wait for a worker are in ``queue``.
    calls_left: int = 0
    queue: TaskQueue[TaskEntry] = field(default_factory=TaskQueue)
    #: The context of the thread that made the seed for its calls.
    context: Context = field(default_factory=copy_context)


@dataclass(eq=False)
class TaskEntry:
    """A queued or running call."""

    number: int
    future: ChildFuture[Any]
    #: The seed whose workers run the call: made for the call, or the newest seed when the call was pickled.
    seed: WorkerSeed
    #: The kind of the frame that sends the call to a worker.
    kind: int
    payload: Payload
    retries: int
    #: The caller's context. A notebook shows output in the cell whose context prints it.
    context: Context = field(default_factory=copy_context)


@dataclass(eq=False)
class Worker:
    """A child that was requested."""

    seed: WorkerSeed
    index: int
    child: str | None = None
    channel: Channel | None = None
    output: OutputPrinter | None = None
    task: TaskEntry | None = None
    #: End of the time limit of its task, on the monotonic clock.
    deadline: float | None = None
    #: The message about its end.
    end: Message | None = None
    #: Time until which data that the worker sent before its end is received.
    end_deadline: float | None = None
    #: Whether its end is intended: it is no longer needed, or its call was cancelled.
    is_retired: bool = False
    #: Whether it was killed because its task took too long.
    is_late: bool = False
    has_worked: bool = False
    #: Whether its channel was opened, and is closed again.
    is_closed: bool = False
    #: The context of its latest call.
    call_context: Context | None = None

    @property
    def context(self) -> Context:
        """The context that prints its output: its latest call's. Before the first call, the context that made its seed."""
        return self.seed.context if self.call_context is None else self.call_context

    @property
    def is_idle(self) -> bool:
        is_open = self.channel is not None and not self.channel.is_broken
        return is_open and self.task is None and self.end is None and not self.is_retired

    @property
    def is_starting(self) -> bool:
        return self.channel is None and self.end is None and not self.is_closed and not self.is_retired

    @property
    def next_deadline(self) -> float | None:
        return self.deadline if self.end is None else self.end_deadline


class WorkerHost(Protocol):
    """The operations of the collector that the pool uses."""

    def fork_workers(self, seed: WorkerSeed, indices: range) -> None: ...
    def kill_worker(self, worker: Worker, keeps_log: bool = False) -> None: ...
    def drop_seed(self, seed: WorkerSeed) -> None: ...
    def watch_channel(self, worker: Worker) -> None: ...
    def forget_channel(self, worker: Worker) -> None: ...
    def cancel_task(self, number: int) -> None: ...


class WorkerPool:
    """Workers, their seeds, and the tasks that have not ended."""

    def __init__(self, host: WorkerHost, options: ExecutorOptions) -> None:
        self._host = host
        self._options = options
        self._tasks: dict[int, TaskEntry] = {}
        #: Calls whose interrupt was requested and not sent yet. The interrupt of a queued call is sent after the call has
        #: begun.
        self._interrupts_due: list[TaskEntry] = []
        self._seeds: list[WorkerSeed] = []
        self._next_task = 0
        self._broken: InitializerFailed | None = None

    @property
    def newest_seed(self) -> WorkerSeed | None:
        """The seed whose workers run calls that are pickled from now on."""
        return self._seeds[-1] if self._seeds else None

    @property
    def is_idle(self) -> bool:
        """Whether all tasks have ended."""
        return not self._tasks

    def require_working(self) -> None:
        """Raises the exception of a failed initializer."""
        if self._broken is not None:
            raise self._broken

    def add_seed(self, seed: WorkerSeed) -> None:
        self._seeds.append(seed)

    def has_batch(self, batch: int) -> bool:
        return any(seed.batch == batch for seed in self._seeds)

    def add_task(self, payload: Payload, seed: WorkerSeed, kind: int) -> ChildFuture[Any]:
        """Queues a call for the workers of a seed."""
        number = self._next_task
        self._next_task += 1
        future: ChildFuture[Any] = ChildFuture(partial(self._host.cancel_task, number))
        task = TaskEntry(number, future, seed, kind, payload, self._options.retries)
        seed.calls_left += 1
        # Queue the task first: if an interrupt ends this method before the task is stored, a worker still takes the call.
        seed.queue.append(task)
        self._tasks[number] = task
        return future

    def cancel(self, number: int) -> None:
        """Handles a cancelled future: its call does not begin, or its worker is killed.

        An interrupt may end this method at any point. The next call of the method then does the rest.
        """
        task = self._tasks.get(number)
        if task is None:
            return
        worker = next((worker for worker in self._workers() if worker.task is task), None)
        if worker is None:
            self._finish(task)
            task.seed.queue.remove(task)
        else:
            worker.is_retired = True
            self._host.kill_worker(worker)
            self._finish(task)
            worker.task = worker.deadline = None

    def request_interrupt(self, future: ChildFuture[Any]) -> None:
        """Requests the interrupt of a call by its worker. If the call has not begun, the request waits."""
        self._interrupts_due += [task for task in self._tasks.values() if task.future is future]

    @property
    def futures(self) -> list[ChildFuture[Any]]:
        """The futures of calls that have not ended."""
        return [task.future for task in self._tasks.values()]

    @property
    def queued_futures(self) -> list[ChildFuture[Any]]:
        """The futures of calls that have not begun."""
        return [task.future for seed in self._seeds for task in seed.queue]

    def fail_all(self, error: Exception) -> list[Completion]:
        """Fails all tasks, because the daemon has ended."""
        failed: list[Completion] = [partial(task.future.complete, partial(_raise, error)) for task in self._tasks.values()]
        for worker in self._workers():
            self._close_channel(worker)
        self._tasks.clear()
        self._seeds.clear()
        return failed

    def abandon(self) -> None:
        """Called in a process that os.fork made: the workers belong to the parent."""
        for worker in self._workers():
            if worker.channel is not None:
                worker.channel.abandon()

    # ---- messages of the daemon

    def handle_started(self, message: Message, fds: list[int]) -> None:
        worker = self._find_worker(message)
        worker.child = message["child"]
        if fds and not worker.is_retired:
            worker.channel = Channel(fds[0], blocking=False)
            worker.output = OutputPrinter(worker.child, self._options.output)
            self._host.watch_channel(worker)
        else:
            for fd in fds:
                os.close(fd)

    def handle_failed(self, message: Message) -> list[Completion]:
        """Handles a worker that was not started."""
        worker = self._find_worker(message)
        del worker.seed.workers[worker.index]
        return self._handle_useless(worker.seed, ChildNotStarted(message["text"]))

    def handle_ended(self, message: Message) -> list[Completion]:
        worker = self._find_worker(message)
        worker.end = message
        # Data that the worker sent before its end must still be received.
        return self._handle_end(worker) if worker.channel is None else self.handle_channel(worker)

    # ---- channels

    def handle_channel(self, worker: Worker) -> list[Completion]:
        """Sends and receives on a channel that is ready."""
        channel = worker.channel
        if channel is None:
            return []
        channel.flush()
        completions = []
        for frame in channel.receive():
            completions += self._handle_frame(worker, frame)
        worker.end_deadline = time.monotonic() + _LAST_PIECE_S
        if channel.is_at_end:
            self._close_channel(worker)
            if worker.end is not None:
                completions += self._handle_end(worker)
        return completions

    def _handle_frame(self, worker: Worker, frame: Frame) -> list[Completion]:
        assert worker.output is not None
        child = str(worker.child)
        if frame.discarded_bytes and frame.kind in (_channel.OUTPUT, _channel.LOG_RECORD, _channel.DISPLAY):
            lost = f"not enough memory for {frame.discarded_bytes} bytes of output; see `farfork logs {child}`\n"
            return [partial(worker.context.run, worker.output.print, 2, lost.encode())]
        if frame.kind == _channel.OUTPUT:
            return [partial(worker.context.run, worker.output.print, frame.task, bytes(frame.payload.pickle))]
        if frame.kind == _channel.LOG_RECORD:
            return [partial(worker.context.run, _logging.handle_record, frame.payload.pickle, child)]
        if frame.kind == _channel.DISPLAY:
            return [partial(worker.context.run, _display.show, frame.payload)]
        if frame.kind == _channel.INITIALIZER_FAILED:
            self._broken = InitializerFailed(child)
            self._broken.__cause__ = _task.value_or_error(frame.payload.pickle)
            if frame.discarded_bytes:
                self._broken.__cause__ = OutOfMemory(child, frame.discarded_bytes)
            # The worker may already have a task, which it will not run.
            failed = [worker.task] if worker.task is not None else []
            failed += [task for seed in self._seeds for task in seed.queue.take_all()]
            worker.task = worker.deadline = None
            return self._fail(failed, self._broken)
        task = worker.task
        if task is None or frame.task != task.number:
            return []
        worker.task = worker.deadline = None
        worker.has_worked = True
        self._finish(task)
        decode: Callable[[], Any] = partial(_task.decode_outcome, frame.payload, child)
        if frame.discarded_bytes:
            decode = partial(_raise, OutOfMemory(child, frame.discarded_bytes))
        complete = partial(task.future.complete, decode)
        return [partial(task.context.run, worker.output.end_call), complete]

    # ---- ends

    def _handle_end(self, worker: Worker) -> list[Completion]:
        """Handles a worker that has ended and all of whose data was received."""
        worker.seed.workers.pop(worker.index, None)
        message, task, child = worker.end, worker.task, str(worker.child)
        assert message is not None
        if task is None:
            if worker.is_retired or worker.has_worked or self._broken is not None:
                return []
            return self._handle_useless(worker.seed, death_error(child, message))
        worker.task = None
        if worker.is_late:
            error: ChildDied = ChildTimeout(
                child,
                f"it was killed: its call, or chunk of calls, took more than {self._options.timeout} s",
                signal_number=9,
                limit="time",
            )
        else:
            error = death_error(child, message)
        if task.retries and not worker.is_late:
            task.retries -= 1
            task.future.child = None
            task.seed.queue.append_first(task)
            return []
        return self._fail([task], error)

    def _handle_useless(self, seed: WorkerSeed, error: Exception) -> list[Completion]:
        """Handles a worker that ended before it did any work. If the seed has no other workers, its waiting calls fail."""
        seed.is_short = bool(seed.workers)
        if seed.is_short:
            return []
        return self._fail(seed.queue.take_all(), error)

    def _fail(self, tasks: Iterable[TaskEntry], error: Exception) -> list[Completion]:
        completions: list[Completion] = []
        for task in tasks:
            self._finish(task)
            completions.append(partial(task.future.complete, partial(_raise, error)))
        return completions

    def _finish(self, task: TaskEntry) -> None:
        if self._tasks.pop(task.number, None) is not None:
            task.seed.calls_left -= 1

    # ---- scheduling

    def schedule(self) -> None:
        """Assigns tasks to idle workers, forks workers for the remaining tasks, and ends workers that are no longer needed.
        """
        for seed in list(self._seeds):
            for worker in [worker for worker in seed.workers.values() if worker.is_idle]:
                if task := self._take_task(seed):
                    self._start_task(worker, task)
                elif seed is not self.newest_seed and not seed.calls_left:
                    self._retire(worker)
        self._send_interrupts()
        self._fork_missing()
        self._drop_unneeded_seeds()

    def handle_deadlines(self) -> list[Completion]:
        """Kills workers whose tasks exceeded the time limit, and stops receiving from those that have ended."""
        now, completions = time.monotonic(), []
        for worker in self._workers():
            if worker.next_deadline is None or worker.next_deadline > now:
                continue
            if worker.end is not None:
                self._close_channel(worker)
                completions += self._handle_end(worker)
            else:
                worker.is_late, worker.deadline = True, None
                # The call's error names the log.
                self._host.kill_worker(worker, keeps_log=True)
        return completions

    def next_deadline(self) -> float | None:
        """The time of the next call of :meth:`handle_deadlines`."""
        return min((worker.next_deadline for worker in self._workers() if worker.next_deadline is not None), default=None)

    def _take_task(self, seed: WorkerSeed) -> TaskEntry | None:
        """Takes the first waiting call of a seed, without cancelled calls."""
        while (task := seed.queue.take()) is not None:
            if not task.future.cancelled():
                return task
            self._finish(task)
        return None

    def _start_task(self, worker: Worker, task: TaskEntry) -> None:
        assert worker.channel is not None
        worker.task, worker.call_context = task, task.context
        if self._options.timeout is not None:
            worker.deadline = time.monotonic() + self._options.timeout
        task.future.child = worker.child
        worker.channel.send(task.kind, task.number, task.payload)
        if worker.channel.is_broken:
            # The worker has already ended, so it has not begun the call.
            worker.task = worker.deadline = task.future.child = None
            task.seed.queue.append_first(task)
        self._host.watch_channel(worker)

    def _send_interrupts(self) -> None:
        due, self._interrupts_due = self._interrupts_due, []
        for task in due:
            worker = next((worker for worker in self._workers() if worker.task is task), None)
            if worker is not None and worker.channel is not None:
                worker.channel.send(_channel.INTERRUPT, task.number, Payload(b""))
                self._host.watch_channel(worker)
            elif task.number in self._tasks:
                self._interrupts_due.append(task)

    def _fork_missing(self) -> None:
        room = self._options.children_max - sum(len(seed.workers) for seed in self._seeds)
        for seed in list(self._seeds):
            waiting = len(seed.queue)
            missing = waiting - sum(1 for worker in seed.workers.values() if worker.is_starting)
            seed.is_short = seed.is_short and waiting > 0 and bool(seed.workers)
            if seed.is_short:
                continue
            if missing > 0 and room <= 0:
                self._retire_idle_of_others(seed)
            count = min(missing, room)
            if count > 0:
                room -= count
                indices = range(seed.next_index, seed.next_index + count)
                seed.next_index = indices.stop
                seed.workers.update({index: Worker(seed, index) for index in indices})
                self._host.fork_workers(seed, indices)

    def _retire_idle_of_others(self, seed: WorkerSeed) -> None:
        """Ends idle workers of other seeds to make room."""
        for worker in [worker for worker in self._workers() if worker.is_idle and worker.seed is not seed]:
            self._retire(worker)

    def _drop_unneeded_seeds(self) -> None:
        for seed in self._seeds[:-1]:
            if not seed.calls_left and not seed.workers:
                self._seeds.remove(seed)
                self._host.drop_seed(seed)

    def _workers(self) -> list[Worker]:
        return [worker for seed in self._seeds for worker in seed.workers.values()]

    def _find_worker(self, message: Message) -> Worker:
        seed = next(seed for seed in self._seeds if seed.batch == message["batch"])
        return seed.workers[message["index"]]

    def _retire(self, worker: Worker) -> None:
        """Closes the channel of an idle worker, which then ends itself."""
        worker.is_retired = True
        self._close_channel(worker)

    def _close_channel(self, worker: Worker) -> None:
        if worker.channel is not None:
            self._host.forget_channel(worker)
            worker.channel.close()
            worker.channel, worker.is_closed = None, True


def _raise(error: BaseException) -> Any:
    raise error
