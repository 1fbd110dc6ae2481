"""A worker: a child that runs one call after the other, as its executor sends them."""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from collections import deque
from functools import partial
from typing import Callable, NoReturn, Sequence

from . import _channel, _connection, _display, _task
from ._channel import Channel, Frame, Payload
from ._checkpoint import Child
from ._errors import OutOfMemory
from ._event_loop import leave_event_loop
from ._history import running_shell
from ._interrupts import CallInterrupts
from ._logging import send_records
from ._output import OutputSender, use_standard_streams
from ._pickling import CallPickling, load_call

#: Exit codes of a worker whose channel has ended, and of a worker that has failed.
_EXIT_OK, _EXIT_FAILED = 0, 1

#: Limit on the wait for another thread that sends frames, in seconds. In a process that the initializer has forked, this
#: thread may be missing.
_FINISH_S = 10.0

_current: Worker | None = None


def run_worker(
    child: Child,
    calls: Sequence[_task.Call],
    initializer: Callable[[], object] | None,
    pickling: CallPickling,
    sends_records: bool,
) -> NoReturn:
    """Runs calls until the channel ends. ``calls`` are those for which the worker's seed was made.

    With ``sends_records``, the program's loggers handle log records of this process.
    """
    global _current
    status = _EXIT_FAILED
    try:
        _task.begin_child()
        _current = Worker(child.take_channel(), calls, pickling, sends_records)
        if initializer is None or _current.initialize(initializer):
            _current.run_calls()
            status = _EXIT_OK
    except BaseException:
        traceback.print_exc()
    finally:
        _task.end_child(status)


def current() -> Worker:
    """The worker of this process."""
    assert _current is not None, "only calls of a worker use this function"
    return _current


class Worker:
    """A worker, inside its own process."""

    def __init__(self, channel_fd: int, calls: Sequence[_task.Call], pickling: CallPickling, sends_records: bool) -> None:
        self._calls = calls
        self._pickling = pickling
        self._interrupts: CallInterrupts | None = None
        self._channel = channel = _QueuedChannel(channel_fd, blocking=True)
        # A process that a call makes with os.fork would otherwise receive the calls of this one.
        os.register_at_fork(after_in_child=channel.abandon)
        leave_event_loop()
        use_standard_streams()
        self._output = OutputSender(lambda stream, data: channel.send(_channel.OUTPUT, stream, Payload(data)))
        os.register_at_fork(after_in_child=self._output.abandon)
        self._output.begin_call()
        if sends_records:
            send_records(lambda record: channel.send(_channel.LOG_RECORD, 0, Payload(record)))
        if (shell := running_shell()) is not None:
            _display.forward_displays(shell, self._send_display)

    def initialize(self, initializer: Callable[[], object]) -> bool:
        """Runs the initializer. Returns whether it succeeded; if not, sends its exception to the executor."""
        try:
            initializer()
            return True
        except BaseException as error:
            # In a process that the initializer has forked, encode_failure prints the exception and ends the process.
            if not _task.is_forked_copy():
                traceback.print_exc()
            self._channel.send(_channel.INITIALIZER_FAILED, 0, Payload(_task.encode_failure(error)))
            self._channel.finish()
            return False

    def run_calls(self) -> None:
        """Runs the calls that the executor sends, until the channel ends."""
        while (frame := self._channel.receive_one()) is not None:
            if frame.kind == _channel.INTERRUPT:
                continue  # The call to interrupt has ended.
            self._output.begin_call()
            payload = self._run_call(frame)
            _task.flush_streams()
            self._output.end_call()
            self._channel.send(_channel.OUTCOME, frame.task, payload)

    def allow_interrupts(self) -> None:
        """From the next call on, the executor can interrupt calls."""
        if threading.current_thread() is threading.main_thread():
            self._interrupts = CallInterrupts(self._channel.fileno())

    def _run_call(self, frame: Frame) -> Payload:
        call, cloudpickle = self._find_call(frame), self._pickling.cloudpickle
        if self._interrupts is None:
            return _task.encode_outcome(call, cloudpickle)
        try:
            return self._interrupts.run(lambda: _task.encode_outcome(call, cloudpickle))
        except KeyboardInterrupt as error:
            # The interrupt arrived after the call had its outcome.
            return Payload(_task.encode_failure(error))

    def _find_call(self, frame: Frame) -> _task.Call:
        if frame.kind == _channel.CALL_OF_SEED:
            return self._calls[int(frame.payload.pickle)]
        if frame.discarded_bytes:
            return partial(_refuse, frame.discarded_bytes)
        # Unpickle inside the call, so that a failure becomes the outcome of the call.
        return lambda: load_call(frame.payload, self._pickling.shared)()

    def _send_display(self, display: _display.Display) -> None:
        # Sends earlier output first, so that the order is kept.
        _task.flush_streams()
        self._output.send_new()
        self._channel.send(_channel.DISPLAY, 0, Payload(pickle.dumps(display)))


def _refuse(size: int) -> NoReturn:
    """The call whose function and arguments do not fit into the memory of this worker."""
    raise OutOfMemory(str(_connection.child_id), size)


class _QueuedChannel(Channel):
    """Any thread may send a frame, even inside another call of :meth:`send`, because signal handlers and finalizers may log.

    One caller at a time sends the frames that all callers have queued, so :meth:`send` never waits for the lock. In a
    process that is forked while another thread holds the lock, the wait would never end.
    """

    def __init__(self, fd: int, blocking: bool) -> None:
        super().__init__(fd, blocking)
        self._frames: deque[tuple[int, int, Payload]] = deque()
        self._sends = threading.Lock()

    def send(self, kind: int, task: int, payload: Payload) -> None:
        self._frames.append((kind, task, payload))
        # Check again after each release of the lock: a frame that was queued before the release has no other sender.
        while self._frames and self._sends.acquire(blocking=False):
            self._send_queued()

    def finish(self) -> None:
        """Called before the process ends: waits until another thread has sent its frames, and sends the rest."""
        if self._sends.acquire(timeout=_FINISH_S):
            self._send_queued()

    def _send_queued(self) -> None:
        """Sends the queued frames. The caller holds the lock, and this method releases it."""
        try:
            while self._frames:
                super().send(*self._frames.popleft())
        finally:
            self._sends.release()
