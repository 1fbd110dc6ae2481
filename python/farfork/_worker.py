"""A worker: a child that runs one call after the other, as its executor sends them."""

from __future__ import annotations

import os
import traceback
from typing import Callable, NoReturn, Sequence

from . import _channel, _task
from ._channel import Channel, Frame, Payload
from ._checkpoint import Child

#: How a worker ends whose channel is at its end, and one that cannot work.
_EXIT_OK, _EXIT_FAILED = 0, 1


def run_worker(child: Child, calls: Sequence[_task.Call], initializer: Callable[[], object] | None) -> NoReturn:
    """Runs calls until the channel ends. ``calls`` are those that its seed was made for."""
    status = _EXIT_FAILED
    try:
        channel = Channel(child.take_channel(), blocking=True)
        if initializer is None or _initialize(channel, initializer):
            while (frame := channel.receive_one()) is not None:
                payload = _task.encode_outcome(_find_call(frame, calls))
                _task.flush_streams()
                channel.send(_channel.OUTCOME, frame.task, payload)
            status = _EXIT_OK
    except BaseException:
        traceback.print_exc()
    _task.flush_streams()
    # Other threads, and what was registered with atexit, are the parent's.
    os._exit(status)


def _initialize(channel: Channel, initializer: Callable[[], object]) -> bool:
    try:
        initializer()
        return True
    except BaseException as error:
        traceback.print_exc()
        channel.send(_channel.INITIALIZER_FAILED, 0, Payload(_task.encode_failure(error)))
        return False


def _find_call(frame: Frame, calls: Sequence[_task.Call]) -> _task.Call:
    if frame.kind == _channel.CALL_OF_SEED:
        return calls[int(frame.payload.pickle)]
    # Within the call, so that what cannot be unpickled here is its outcome.
    return lambda: frame.payload.load()()
