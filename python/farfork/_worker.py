"""A worker: a child that runs one call after the other, as its executor sends them."""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from typing import Callable, NoReturn, Sequence

from . import _channel, _task
from ._channel import Channel, Frame, Payload
from ._checkpoint import Child
from ._logging import send_records
from ._output import OutputSender, use_standard_streams
from ._pickling import CallPickling, load_call
from ._shared import SharedObjects

#: How a worker ends whose channel is at its end, and one that cannot work.
_EXIT_OK, _EXIT_FAILED = 0, 1

#: For a thread to send its frame. In a process that the initializer forked, the thread may be missing.
_FINISH_S = 10.0


def run_worker(
    child: Child,
    calls: Sequence[_task.Call],
    initializer: Callable[[], object] | None,
    pickling: CallPickling,
    sends_records: bool,
) -> NoReturn:
    """Runs calls until the channel ends. ``calls`` are those that its seed was made for.

    With ``sends_records``, the program's loggers handle what is logged here.
    """
    status = _EXIT_FAILED
    try:
        channel = _QueuedChannel(child.take_channel(), blocking=True)
        # A process that a call makes with os.fork would read the calls of this one.
        os.register_at_fork(after_in_child=channel.abandon)
        use_standard_streams()
        output = OutputSender(lambda stream, data: channel.send(_channel.OUTPUT, stream, Payload(data)))
        output.begin_call()
        if sends_records:
            send_records(lambda record: channel.send(_channel.LOG_RECORD, 0, Payload(record)))
        if initializer is None or _initialize(channel, initializer):
            _run_calls(channel, output, calls, pickling)
            status = _EXIT_OK
    except BaseException:
        traceback.print_exc()
    finally:
        _task.end_child(status)


def _run_calls(channel: Channel, output: OutputSender, calls: Sequence[_task.Call], pickling: CallPickling) -> None:
    while (frame := channel.receive_one()) is not None:
        output.begin_call()
        payload = _task.encode_outcome(_find_call(frame, calls, pickling.shared), pickling.cloudpickle)
        _task.flush_streams()
        output.end_call()
        channel.send(_channel.OUTCOME, frame.task, payload)


class _QueuedChannel(Channel):
    """Any thread may send a frame, also from within another call of :meth:`send`: signal handlers and finalizers log.

    One caller sends what all have queued. So no thread waits for a lock, which a process forked meanwhile would never get.
    """

    def __init__(self, fd: int, blocking: bool) -> None:
        super().__init__(fd, blocking)
        self._frames: deque[tuple[int, int, Payload]] = deque()
        self._sends = threading.Lock()

    def send(self, kind: int, task: int, payload: Payload) -> None:
        self._frames.append((kind, task, payload))
        # Looked at again after the release: a frame that was queued before it is this caller's.
        while self._frames and self._sends.acquire(blocking=False):
            self._send_queued()

    def finish(self) -> None:
        """Before the end of the process: waits until another thread has sent what it is sending, and sends the rest."""
        if self._sends.acquire(timeout=_FINISH_S):
            self._send_queued()

    def _send_queued(self) -> None:
        """With the lock, which it releases."""
        try:
            while self._frames:
                super().send(*self._frames.popleft())
        finally:
            self._sends.release()


def _initialize(channel: _QueuedChannel, initializer: Callable[[], object]) -> bool:
    try:
        initializer()
        return True
    except BaseException as error:
        traceback.print_exc()
        channel.send(_channel.INITIALIZER_FAILED, 0, Payload(_task.encode_failure(error)))
        channel.finish()
        return False


def _find_call(frame: Frame, calls: Sequence[_task.Call], shared: SharedObjects) -> _task.Call:
    if frame.kind == _channel.CALL_OF_SEED:
        return calls[int(frame.payload.pickle)]
    # Within the call, so that what cannot be unpickled here is its outcome.
    return lambda: load_call(frame.payload, shared)()
