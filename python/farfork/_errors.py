"""The exceptions of this package. Each message names the object, the cause and, if there is one, the next step."""

from __future__ import annotations

import signal
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError


class Error(Exception):
    """The base class of all exceptions of this package."""


class DaemonNotFound(Error):
    """No daemon listens, or this process cannot connect to it, for example because this process is a child."""


class CheckpointError(Error):
    """No seed of this process could be made. The process continues unchanged."""


class PayloadMissing(Error):
    """A child that was forked without a payload has read its payload."""

    def __init__(self, child: str, seed: str) -> None:
        super().__init__(child, seed)
        #: The child's id.
        self.child = child
        #: The id of the seed from which the child was forked.
        self.seed = seed

    def __str__(self) -> str:
        return (
            f"child {self.child}: it was forked without a payload; give it one with "
            f"`farfork fork {self.seed} --payload FILE`, or one to each child with `--payloads FILE`"
        )


class ConnectionLost(Error, BrokenExecutor):
    """The daemon has ended, and with it the children of the executor."""


class ChildNotStarted(Error):
    """A child could not be started. Other children are not affected."""


class ChildDied(Error):
    """A child ended before it returned a result. Other children are not affected."""

    def __init__(
        self,
        child: str,
        cause: str,
        exit_code: int | None = None,
        signal_number: int | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(child, cause, exit_code, signal_number, limit)
        #: The child's id, for ``farfork logs``.
        self.child = child
        #: The cause as text.
        self.cause = cause
        #: The exit code, if the child exited on its own.
        self.exit_code = exit_code
        #: The number of the signal that killed the child, if any.
        self.signal = signal_number
        #: The exceeded limit for which the child was killed, if any: ``"time"``, ``"memory"`` or ``"node_memory"``.
        self.limit = limit

    def __str__(self) -> str:
        return f"child {self.child}: {self.cause}; see `farfork logs {self.child}`"


class BranchClosed(Error):
    """The branch has ended, or another thread has closed it during a call."""

    def __init__(self, child: str) -> None:
        super().__init__(child)
        #: The child's id.
        self.child = child

    def __str__(self) -> str:
        return f"child {self.child}: this branch has ended; make another one with farfork.branch()"


class ChildTimeout(ChildDied, FutureTimeoutError):
    """A child was killed because its call exceeded the executor's time limit."""


class OutOfMemory(Error, MemoryError):
    """A result, or a call's arguments, does not fit into the memory of the process that receives it. Other calls are not
    affected.
    """

    def __init__(self, child: str, size: int) -> None:
        super().__init__(child, size)
        #: The id of the child that ran the call.
        self.child = child
        #: The size of the pickled object, in bytes.
        self.size = size

    def __str__(self) -> str:
        return (
            f"child {self.child}: there is not enough memory for the {self.size} bytes of this call; split it into smaller "
            "ones, or raise the memory limit (ulimit -v)"
        )


class InitializerFailed(Error, BrokenExecutor):
    """The initializer of an executor raised an exception in a worker, which is the ``__cause__``. The executor takes no more
    calls.
    """

    def __init__(self, child: str) -> None:
        super().__init__(child)
        #: The worker's id.
        self.child = child

    def __str__(self) -> str:
        return f"child {self.child}: the executor's initializer raised an exception; fix it, and make a new executor"


class RemoteTraceback(Exception):
    """The traceback of an exception in a child: the ``__cause__`` of that exception in the program."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def signal_name(number: int) -> str:
    """Returns the name of a signal: ``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
