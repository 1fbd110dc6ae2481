"""The exceptions of this package. Each message names the object, the cause and, where there is one, the next step."""

from __future__ import annotations

import signal
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError


class Error(Exception):
    """Everything that this package raises of its own."""


class DaemonNotFound(Error):
    """No daemon listens, or this process may not connect to it."""


class CheckpointError(Error):
    """No seed could be made of this process, which goes on as if nothing had happened."""


class PayloadMissing(Error):
    """A child read its payload, and was forked without one."""

    def __init__(self, child: str, seed: str) -> None:
        super().__init__(child, seed)
        #: The child's id.
        self.child = child
        #: The id of the seed that it was forked from.
        self.seed = seed

    def __str__(self) -> str:
        return (
            f"child {self.child}: it was forked without a payload; give it one with "
            f"`farfork fork {self.seed} --payload FILE`, or one to each child with `--payloads FILE`"
        )


class ConnectionLost(Error, BrokenExecutor):
    """The daemon has gone, and the children of the executor with it."""


class ChildNotStarted(Error):
    """A child could not be started; the others are unharmed."""


class ChildDied(Error):
    """A child ended before it gave a result; the others are unharmed."""

    def __init__(
        self,
        child: str,
        cause: str,
        exit_code: int | None = None,
        signal_number: int | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(child, cause, exit_code, signal_number, limit)
        #: Its id, for ``farfork logs``.
        self.child = child
        #: Why, in words.
        self.cause = cause
        #: What it called ``exit`` with, if it did.
        self.exit_code = exit_code
        #: The signal that killed it, if one did.
        self.signal = signal_number
        #: Which limit it was killed for, if it was for one: ``"time"``, ``"memory"`` or ``"node_memory"``.
        self.limit = limit

    def __str__(self) -> str:
        return f"child {self.child}: {self.cause}; see `farfork logs {self.child}`"


class BranchClosed(Error):
    """A cell was to be run in a branch that has ended."""

    def __init__(self, child: str) -> None:
        super().__init__(child)
        #: The child's id.
        self.child = child

    def __str__(self) -> str:
        return f"child {self.child}: this branch has ended; make another one with farfork.branch()"


class ChildTimeout(ChildDied, FutureTimeoutError):
    """A child was killed because it ran for longer than the executor allows."""


class InitializerFailed(Error, BrokenExecutor):
    """The initializer of an executor raised in a worker: the executor takes no more calls. The ``__cause__`` is what it raised."""

    def __init__(self, child: str) -> None:
        super().__init__(child)
        #: The worker's id.
        self.child = child

    def __str__(self) -> str:
        return f"child {self.child}: the executor's initializer raised an exception; fix it, and make a new executor"


class RemoteTraceback(Exception):
    """Where in a child an exception was raised: the ``__cause__`` of an exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
