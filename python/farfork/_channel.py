"""A channel between this process and a worker: a stream socket that carries frames.

A frame is a pickle with its out-of-band buffers (PEP 574). So arrays are sent without a copy, and received into memory
that the unpickled array then owns.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections import deque
from typing import Any, Iterator, NamedTuple, Sequence

#: Kinds of frames. To a worker: a call of its seed, a pickled call, or an interrupt of its call. From a worker: an outcome,
#: the failure of its initializer, output, a record of :mod:`logging`, or a display.
CALL_OF_SEED, PICKLED_CALL, OUTCOME, INITIALIZER_FAILED, OUTPUT, LOG_RECORD, INTERRUPT, DISPLAY = 1, 2, 3, 4, 5, 6, 7, 8

#: Kind, number of buffers, number of the task (of the stream, if the kind is OUTPUT), bytes of the pickle. The lengths of
#: the buffers follow, then the pickle, then the buffers.
_HEADER = struct.Struct("<IIQQ")
_LENGTH = struct.Struct("<Q")

#: Size of the buffer for bytes that are received and discarded.
_DISCARD_BYTES = 64 << 10

#: Limit on pieces per sendmsg(2), whose own limit is IOV_MAX (1024).
_PIECES_MAX = 512


class Payload(NamedTuple):
    """A pickle and its out-of-band buffers."""

    pickle: bytes | bytearray
    buffers: Sequence[bytes | bytearray | memoryview] = ()

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.pickle) + sum(len(buffer) for buffer in self.buffers)

    def load(self) -> Any:
        return pickle.loads(self.pickle, buffers=self.buffers)


class Frame(NamedTuple):
    """A received frame."""

    kind: int
    task: int
    payload: Payload
    #: Size of a payload for which this process had not enough memory. It was discarded, and ``payload`` is empty.
    discarded_bytes: int = 0


class Channel:
    """One end of a channel. ``blocking`` decides whether calls wait for the other end."""

    def __init__(self, fd: int, blocking: bool) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(blocking)
        self._outgoing: deque[memoryview] = deque()
        self._received: deque[Frame] = deque()
        self._filling = self._fill_frames()
        self._space = next(self._filling)
        #: Whether the other end has sent its last frame and closed.
        self.is_at_end = False
        #: Whether the other end no longer receives.
        self.is_broken = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_outgoing(self) -> bool:
        """Whether a part of a frame has not been sent yet."""
        return bool(self._outgoing)

    def send(self, kind: int, task: int, payload: Payload) -> None:
        """Sends a frame, or as much as the other end accepts at once; :meth:`flush` sends the rest."""
        buffers = [memoryview(buffer).cast("B") for buffer in payload.buffers]
        lengths = b"".join(_LENGTH.pack(len(buffer)) for buffer in buffers)
        header = _HEADER.pack(kind, len(buffers), task, len(payload.pickle)) + lengths
        pieces = [memoryview(header), memoryview(payload.pickle), *buffers]
        # An empty piece would never be removed from the queue.
        self._outgoing.extend(piece for piece in pieces if len(piece))
        self.flush()

    def flush(self) -> None:
        """Sends the remaining data. If the other end is closed, discards the data and sets :attr:`is_broken`."""
        try:
            while self._outgoing:
                pieces = [self._outgoing[index] for index in range(min(len(self._outgoing), _PIECES_MAX))]
                self._discard_sent(self._socket.sendmsg(pieces, (), socket.MSG_NOSIGNAL))
        except BlockingIOError:
            pass
        except OSError:
            self.is_broken = True
            self._outgoing.clear()

    def receive(self) -> Iterator[Frame]:
        """Yields the frames that have arrived. Sets :attr:`is_at_end` at the end of the stream."""
        while self._receive_some():
            while self._received:
                yield self._received.popleft()

    def receive_one(self) -> Frame | None:
        """Waits for a frame on a blocking channel; ``None`` at the end of the stream."""
        return next(self.receive(), None)

    def close(self) -> None:
        """Closes this end. The other end receives the data that was sent, then the end of the stream."""
        try:
            # shutdown(2), because close(2) alone does not end the stream: a seed of this process has a copy of the
            # descriptor.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other end is closed.
        self._socket.close()

    def abandon(self) -> None:
        """Closes only this process's descriptor; other processes have copies."""
        self._socket.close()

    def _discard_sent(self, count: int) -> None:
        while count:
            piece = self._outgoing.popleft()
            if count < len(piece):
                self._outgoing.appendleft(piece[count:])
                return
            count -= len(piece)

    def _receive_some(self) -> bool:
        """Receives data into the current buffer. Returns whether any arrived."""
        if self.is_at_end:
            return False
        try:
            count = self._socket.recv_into(self._space)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self.is_at_end = count == 0
        self._space = self._space[count:]
        if count and not self._space:
            self._space = next(self._filling)
        return count > 0

    def _fill_frames(self) -> Iterator[memoryview]:
        """Yields the buffers to fill, one after the other, and makes frames of them."""
        while True:
            header = bytearray(_HEADER.size)
            yield memoryview(header)
            kind, buffers_count, task, pickle_bytes = _HEADER.unpack(header)
            lengths = bytearray(buffers_count * _LENGTH.size)
            if lengths:
                yield memoryview(lengths)
            sizes = [pickle_bytes, *(length for (length,) in _LENGTH.iter_unpack(lengths))]
            parts = _allocate(sizes)
            if parts is None:
                yield from _discard(sum(sizes))
                self._received.append(Frame(kind, task, Payload(b""), sum(sizes)))
                continue
            for part in parts:
                if part:
                    yield memoryview(part)
            self._received.append(Frame(kind, task, Payload(parts[0], parts[1:])))


def _allocate(sizes: list[int]) -> list[bytearray] | None:
    """Returns buffers of these sizes; ``None`` if the memory of this process is not enough for all of them."""
    try:
        return [bytearray(size) for size in sizes]
    except MemoryError:
        return None


def _discard(count: int) -> Iterator[memoryview]:
    """Yields buffers to fill for bytes that nothing will read, so that the next frame can be received."""
    buffer = memoryview(bytearray(min(count, _DISCARD_BYTES)))
    while count:
        piece = buffer[: min(count, len(buffer))]
        count -= len(piece)
        yield piece


class WakePipe:
    """Wakes the thread that polls it."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:
            pass  # The pipe is full, so the thread will wake.

    def clear(self) -> None:
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
