"""The calls of one checkpoint: whether each is not forked yet, runs, or has ended.

``_executor`` sends the requests and passes the daemon's messages to this module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

from . import _protocol, _task
from ._channel import Payload
from ._connection import read_all
from ._errors import ChildDied, ChildNotStarted, ChildTimeout, OutOfMemory, signal_name
from ._future import ChildFuture
from ._protocol import Message


@dataclass
class Batch:
    """Calls whose children are forked from one seed. A child has the index of its future."""

    number: int
    seed: str
    futures: list[ChildFuture[Any]]
    #: Children that were requested and have not ended.
    living: set[int] = field(default_factory=set)
    #: Index of the first child that was not requested.
    next_index: int = 0

    def allocate(self, count_max: int) -> range:
        """Takes the next calls to fork: consecutive calls that are not cancelled, at most ``count_max``."""
        while self.next_index < len(self.futures) and self.futures[self.next_index].cancelled():
            self.next_index += 1
        first = end = self.next_index
        while end < len(self.futures) and end - first < count_max and not self.futures[end].cancelled():
            end += 1
        self.next_index = end
        self.living.update(range(first, end))
        return range(first, end)

    @property
    def is_over(self) -> bool:
        """Whether each call has ended, or was cancelled before its child was requested."""
        return self.next_index == len(self.futures) and not self.living

    def handle_started(self, message: Message) -> bool:
        """Handles the start of a child. Returns whether to kill it, because its call has been cancelled."""
        index: int = message["index"]
        future = self.futures[index]
        future.child = message["child"]
        return future.cancelled()

    def handle_ended(self, message: Message, fds: list[int]) -> Callable[[], None]:
        """Handles the end of a child, or its failed start. Returns the function that completes its future."""
        index = message["index"]
        self.living.discard(index)
        future = self.futures[index]
        if message.kind == _protocol.FAILED:
            return partial(future.complete, partial(_raise, ChildNotStarted(message["text"])))
        if message["how"] == _protocol.ENDED_EXIT and message["value"] == 0 and fds:
            # Read the result here, where no checkpoint runs: a capture requires that the open files do not change.
            return partial(future.complete, _read_result(str(future.child), fds[0]))
        for fd in fds:
            os.close(fd)
        return partial(future.complete, partial(_raise, death_error(str(future.child), message)))


def _read_result(child: str, fd: int) -> Callable[[], Any]:
    """Reads a result and closes the file. Returns the function that decodes it, or raises the error of its call."""
    size = os.fstat(fd).st_size
    try:
        return partial(_task.decode_outcome, Payload(read_all(fd)), child)
    except MemoryError:
        return partial(_raise, OutOfMemory(child, size))
    except OSError as error:
        return partial(_raise, ChildDied(child, f"its result cannot be read: {error.strerror}", exit_code=0))


def death_error(child: str, message: Message) -> ChildDied:
    """Returns the error of a call whose child has ended without a result."""
    how, value = message["how"], message["value"]
    if how == _protocol.ENDED_LOST:
        return ChildDied(child, f"its exit status is unknown: {message['text']}")
    if how == _protocol.ENDED_EXIT:
        return ChildDied(child, f"it ended with exit status {value} before it returned a result", exit_code=value)
    clause, limit = message["text"], message["limit"]
    cause = f"it was killed: {clause}" if clause else f"it was killed by {signal_name(value)}"
    died = ChildTimeout if limit == _protocol.LIMIT_TIME else ChildDied
    return died(child, cause, signal_number=value, limit=_protocol.LIMITS.get(limit))


def _raise(error: BaseException) -> Any:
    raise error
