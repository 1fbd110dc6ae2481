"""The checkpoint: one call that returns in the parent and in each child."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import suppress
from typing import ClassVar, Literal, Union

from . import _connection, _pages, _processor, _protocol
from ._connection import Connection
from ._errors import CheckpointError, Error, PayloadMissing
from ._history import ClosedHistory
from ._hooks import AtFork
from ._interrupts import HeldInterrupts
from ._own_streams import OwnStreams
from ._parent_id import KeptParentId
from ._protocol import Message
from ._reseed import Reseeding

#: One at a time: another thread's connection would be a socket that cannot be carried. In a child the thread that holds
#: it goes on as in the parent, and gives it back.
checkpoint_lock = threading.RLock()


#: Python 3.12 freezes some objects of its own when it starts.
_frozen_at_import = gc.get_freeze_count()


class Seed:
    """What the parent of a checkpoint gets: the seed that was made of it, which children are forked from."""

    is_child: ClassVar[Literal[False]] = False

    def __init__(self, id: str, pause_s: float, prepare_s: float) -> None:
        #: Its id, for ``farfork fork``.
        self.id = id
        #: How long this process stood still, in seconds.
        self.pause_s = pause_s
        #: How long making it took as a whole, in seconds.
        self.prepare_s = prepare_s

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"Seed({self.id!r})"

    def drop(self) -> None:
        """Drops the seed. Children go on with the memory that they have."""
        with checkpoint_lock:
            connection = Connection()
            try:
                connection.send(_protocol.DROP, seed=self.id)
            finally:
                connection.close()


class Child:
    """What a child of a checkpoint gets: which one it is, and what it is for."""

    is_child: ClassVar[Literal[True]] = True

    def __init__(
        self, id: str, seed: str, index: int, payload: bytes | None, result_fd: int, channel_fd: int | None = None
    ) -> None:
        #: Its id.
        self.id = id
        #: The id of the seed that it was forked from.
        self.seed = seed
        #: Its position among the children of its fork, from 0.
        self.index = index
        #: Whether it was given a payload, which may be empty.
        self.has_payload = payload is not None
        self._payload = payload
        self._result_fd = result_fd
        self._channel_fd = channel_fd

    @property
    def payload(self) -> bytes:
        """What it was given with ``--payload`` or ``--payloads``.

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
        """Adds to what ``farfork wait --results`` gives of this child."""
        rest = memoryview(data.encode() if isinstance(data, str) else data)
        while rest:
            rest = rest[os.write(self._result_fd, rest) :]

    def take_channel(self) -> int:
        """The descriptor of its channel to the executor that forked it, which the caller closes."""
        fd, self._channel_fd = self._channel_fd, None
        assert fd is not None, "the executor asked for a channel"
        return fd


def checkpoint(name: str | None = None, ttl: float | None = None) -> Union[Seed, Child]:
    """Makes a seed of this process, and returns many times: here, with a :class:`Seed`, and in each :class:`Child` that
    is ever forked from it.

    ``name`` is one that commands take in the id's place; the seed is dropped after ``ttl`` seconds, or with the daemon.

    In a child all threads go on, as they do here. The functions registered with :func:`os.register_at_fork` are run,
    ``random``, NumPy's and OpenSSL's generators are seeded anew, and the collector leaves alone what was there before
    (:func:`gc.freeze`), so that it does not fetch all memory only to look at it.

    Raises :class:`CheckpointError` where no seed can be made, for example because this process uses io_uring, and
    :class:`DaemonNotFound` where there is no daemon.
    """
    ttl_ms = 0 if ttl is None else max(1, round(ttl * 1000))
    interrupts = HeldInterrupts()
    with checkpoint_lock:
        connection = Connection()
        interrupts.begin()
        seed_or_child: Seed | Child | None = None
        try:
            seed_or_child = _request_checkpoint(connection, ttl_ms, name or "")
        finally:
            interrupts.end()
            connection.close()
            if seed_or_child is None:
                interrupts.deliver()
    if not seed_or_child.is_child:
        try:
            interrupts.deliver()
        except BaseException:
            with suppress(Error, OSError):
                seed_or_child.drop()
            raise
    return seed_or_child


def _request_checkpoint(connection: Connection, ttl_ms: int, name: str) -> Union[Seed, Child]:
    hooks = AtFork()
    for stream in (sys.stdout, sys.stderr):
        # What is written and not yet out would come out of each child again.
        if stream is not None and not stream.closed:
            stream.flush()
    pages, pages_bytes = _pages.offer_pages()
    reseeding = Reseeding()
    keepers = (KeptParentId(), OwnStreams(), ClosedHistory())
    hooks.before()
    for keeper in keepers:
        keeper.before()
    # Without a collection before: the holes that it leaves are where children would write.
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
            # A child's thread was never pinned.
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
        payload = _read_payload(message, fds)
        channel_fd = fds[-1] if len(fds) > 1 + message["has_payload"] else None
        child = Child(message["child"], message["seed"], message["index"], payload, fds[0], channel_fd)
        _connection.child_id = child.id
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
