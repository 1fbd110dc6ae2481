"""The checkpoint: one call that returns in the parent and in each child."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import Callable, ClassVar, Literal, Union

from . import _connection, _pages, _processor, _protocol
from ._checkpoint_lock import checkpoint_lock, outside_completions, wait_for_completions
from ._connection import Connection
from ._copied_threads import copies_stand_still
from ._errors import CheckpointError, Error, PayloadMissing
from ._history import ClosedHistory
from ._hooks import AtFork
from ._interrupts import HeldSignals
from ._own_streams import OwnStreams
from ._parent_id import KeptParentId
from ._protocol import Message
from ._reseed import Reseeding

#: Number of objects that Python itself has frozen: Python 3.12 freezes some at startup.
_frozen_at_import = gc.get_freeze_count()


class Seed:
    """The result of a checkpoint in the parent: the seed from which children are forked."""

    is_child: ClassVar[Literal[False]] = False

    def __init__(self, id: str, pause_s: float, prepare_s: float) -> None:
        #: The seed's id, for ``farfork fork``.
        self.id = id
        #: Time for which this process was stopped, in seconds.
        self.pause_s = pause_s
        #: Duration of the whole prepare, in seconds.
        self.prepare_s = prepare_s

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"Seed({self.id!r})"

    @copies_stand_still
    def drop(self) -> None:
        """Drops the seed. Children continue with the memory that they have."""
        with checkpoint_lock:
            connection = Connection()
            try:
                connection.send(_protocol.DROP, seed=self.id)
            finally:
                connection.close()


class Child:
    """The result of a checkpoint in a child: its ids and its payload."""

    is_child: ClassVar[Literal[True]] = True

    def __init__(
        self, id: str, seed: str, index: int, payload: bytes | None, result_fd: int, channel_fd: int | None = None
    ) -> None:
        #: The child's id.
        self.id = id
        #: The id of the seed from which the child was forked.
        self.seed = seed
        #: The child's index among the children of its fork, from 0.
        self.index = index
        #: Whether the child has a payload, which may be empty.
        self.has_payload = payload is not None
        self._payload = payload
        self._result_fd = result_fd
        self._channel_fd = channel_fd

    @property
    def payload(self) -> bytes:
        """The bytes of ``--payload`` or ``--payloads``.

        Raises :class:`PayloadMissing` in a child that was forked without a payload.
        """
        if self._payload is None:
            raise PayloadMissing(self.id, self.seed)
        return self._payload

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        payload = None if self._payload is None else self._payload[:32]
        return f"Child({self.id!r}, index={self.index}, payload={payload!r})"

    def write_result(self, data: bytes | str) -> None:
        """Appends to the result that ``farfork wait --results`` prints for this child."""
        rest = memoryview(data.encode() if isinstance(data, str) else data)
        while rest:
            rest = rest[os.write(self._result_fd, rest) :]

    def take_channel(self) -> int:
        """Returns the descriptor of the child's channel to the executor that forked it. The caller must close the
        descriptor.
        """
        fd, self._channel_fd = self._channel_fd, None
        assert fd is not None, "the child has no channel, or it was taken before"
        return fd


@copies_stand_still
@outside_completions
def checkpoint(name: str | None = None, ttl: float | None = None) -> Union[Seed, Child]:
    """Makes a seed of this process, and returns many times: in this process a :class:`Seed`, and in each child that is
    forked from the seed a :class:`Child`.

    Commands accept ``name`` instead of the id. ``ttl`` is the seed's time to live in seconds, which each fork renews. The
    seed also ends with the daemon.

    In a child all threads continue, as in this process. Functions registered with :func:`os.register_at_fork` run. The
    generators of ``random``, NumPy and OpenSSL are reseeded. The garbage collector ignores objects that existed before the
    checkpoint (:func:`gc.freeze`), because traversing them would fetch all memory.

    Raises :class:`CheckpointError` if no seed can be made, for example because this process uses io_uring, and
    :class:`DaemonNotFound` if there is no daemon.
    """
    return begin_children(lambda: None, name, ttl)


def begin_children(
    begin_child: Callable[[], object], name: str | None = None, ttl: float | None = None
) -> Union[Seed, Child]:
    """Like :func:`checkpoint`. Each child first calls ``begin_child``, before ``_connection.child_id`` shows other threads
    that this process is a child.
    """
    ttl_ms = 0 if ttl is None else max(1, round(ttl * 1000))
    signals = HeldSignals()
    with checkpoint_lock:
        connection = Connection()
        signals.begin()
        seed_or_child: Seed | Child | None = None
        try:
            wait_for_completions()
            seed_or_child = _request_checkpoint(connection, ttl_ms, name or "", begin_child)
        finally:
            signals.end()
            connection.close()
            if seed_or_child is None and _connection.child_id is None:
                signals.deliver()
    if not seed_or_child.is_child:
        try:
            signals.deliver()
        except BaseException:
            with suppress(Error, OSError):
                seed_or_child.drop()
            raise
    return seed_or_child


def _request_checkpoint(
    connection: Connection, ttl_ms: int, name: str, begin_child: Callable[[], object]
) -> Union[Seed, Child]:
    hooks = AtFork()
    for stream in (sys.stdout, sys.stderr):
        # Otherwise each child would also write the buffered data.
        if stream is not None and not stream.closed:
            stream.flush()
    pages, pages_bytes = _pages.offer_pages()
    reseeding = Reseeding()
    keepers = (KeptParentId(), OwnStreams(), ClosedHistory())
    hooks.before()
    for keeper in keepers:
        keeper.before()
    # Do not collect garbage before gc.freeze(): children would write to the freed memory, and each written page must be
    # copied.
    was_frozen = gc.get_freeze_count() > _frozen_at_import
    gc.freeze()
    answer: tuple[Message, list[int]] | None = None
    pinned_thread = _processor.pin_thread() if pages else 0
    request: dict[str, int | str] = {"ttl_ms": ttl_ms, "name": name, "pages": pages, "pages_bytes": pages_bytes, "kept_thread": pinned_thread}
    try:
        connection.send(_protocol.CHECKPOINT, **request)
        answer = connection.receive()
    except OSError as error:
        raise CheckpointError(f"the node's daemon: {error}") from None
    finally:
        if answer is None or answer[0].kind != _protocol.CHILD:
            # In a child, this thread may already run on all CPUs.
            _processor.unpin_thread(pinned_thread)
            if not was_frozen:
                gc.unfreeze()
            for keeper in keepers:
                keeper.in_parent()
            hooks.in_parent()
    if answer is None:
        raise CheckpointError("the node's daemon: it ended before it answered; see its log")
    message, fds = answer
    if message.kind == _protocol.CHILD:
        begin_child()
        _connection.child_id = message["child"]
        payload = _read_payload(message, fds)
        channel_fd = fds[-1] if len(fds) > 1 + message["has_payload"] else None
        child = Child(message["child"], message["seed"], message["index"], payload, fds[0], channel_fd)
        for keeper in keepers:
            keeper.in_child()
        reseeding.in_child()
        hooks.in_child()
        return child
    if message.kind == _protocol.SEED:
        return Seed(message["seed"], message["pause_us"] / 1e6, message["prepare_us"] / 1e6)
    raise CheckpointError(message.get("text") or f"the node's daemon: a reply of kind {message.kind}")


def _read_payload(message: Message, fds: list[int]) -> bytes | None:
    if not message["has_payload"]:
        return None
    return _connection.read_all(fds[1])
