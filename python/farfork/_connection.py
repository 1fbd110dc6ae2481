"""A connection to the node's daemon: finds its socket, sends requests, waits for replies."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from . import _protocol
from ._copied_threads import refuse_copied_thread
from ._errors import DaemonNotFound
from ._protocol import Message

#: The id of this child; ``None`` in a parent. A child has no daemon to connect to.
child_id: str | None = None

DEFAULT_RUN_DIR = "/run/farfork"

#: Limit for an answer that depends only on the daemon, in seconds. It is far above the daemon's own limit for a checkpoint.
#: A daemon that is silent for longer has stopped responding.
ANSWER_S_MAX = 150.0


def socket_path() -> str:
    """Returns the path of the socket on which the daemon listens for programs. It is the first of these that is set, or
    exists:

    ``FARFORK_PROGRAM_SOCKET``; ``program.sock`` in the directory of ``FARFORK_SOCKET``; ``program.sock`` in the run
    directory, ``FARFORK_RUN_DIR`` or ``/run/farfork``; ``n1/program.sock`` in the run directory, of the first node that
    ``farfork up`` started.
    """
    if path := os.environ.get("FARFORK_PROGRAM_SOCKET"):
        return path
    if node_socket := os.environ.get("FARFORK_SOCKET"):
        return os.path.join(os.path.dirname(node_socket), "program.sock")
    run_dir = os.environ.get("FARFORK_RUN_DIR", DEFAULT_RUN_DIR)
    own, of_first_node = (os.path.join(run_dir, *name) for name in (("program.sock",), ("n1", "program.sock")))
    return of_first_node if os.path.exists(of_first_node) and not os.path.exists(own) else own


#: A smaller file is read with a single call.
_SMALL_BYTES = 64 << 10

_DESCRIPTOR = struct.Struct("i")

#: The only control data of a message are descriptors (SCM_RIGHTS).
_ANCILLARY_BYTES_MAX = socket.CMSG_LEN(_protocol.FDS_MAX * _DESCRIPTOR.size)


def require_no_child() -> None:
    """Raises an exception in a child: :class:`CopiedThread` in a copied thread, :class:`DaemonNotFound` in any other."""
    if child_id is not None:
        refuse_copied_thread()
        raise DaemonNotFound(f"child {child_id}: a child cannot be forked further; its parent can, once more")


class Connection:
    """Requests and replies, each a whole message. One thread may send while another one receives."""

    def __init__(self) -> None:
        require_no_child()
        path = socket_path()
        self._socket = _move_above_stdio(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            step = "start one with `farfork node` or `farfork up`, or set its path in FARFORK_PROGRAM_SOCKET"
            if isinstance(error, PermissionError):
                step = "only root may connect: run this program with sudo"
            raise DaemonNotFound(f"node at {path}: {error.strerror or error}; {step}") from None
        self._inode = os.fstat(self._socket.fileno()).st_ino

    def send(self, kind: int, **fields: int | str) -> None:
        """Sends a request. Raises :class:`OSError` if the daemon has ended."""
        self._socket.send(_protocol.encode(kind, self._inode, **fields))

    def receive(self, limit_s: float | None = ANSWER_S_MAX) -> tuple[Message, list[int]] | None:
        """Waits for a reply and its descriptors; ``None`` at the end of the connection.

        After a checkpoint request, the parent and each child return from the same recvmsg(2) call.
        """
        self._socket.settimeout(limit_s)
        # Not socket.recv_fds, which first imports a module: a child that wakes here should write to few pages.
        message, ancillary, _, _ = self._socket.recvmsg(
            _protocol.MESSAGE_BYTES_MAX, _ANCILLARY_BYTES_MAX, socket.MSG_CMSG_CLOEXEC
        )
        fds = [fd for _, _, data in ancillary for (fd,) in _DESCRIPTOR.iter_unpack(data)]
        return (_protocol.decode(message), fds) if message else None

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self) -> None:
        """Ends the connection, so that a thread that waits for a reply wakes up."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The daemon has ended.

    def close(self) -> None:
        """Closes the descriptor."""
        self._socket.close()


def read_all(fd: int) -> bytes:
    """Reads all of a regular file that was sent with a message, and closes it."""
    # Most files have a few bytes. Read these without a file object, for which a child would write to further pages.
    try:
        first_bytes = os.read(fd, _SMALL_BYTES)
    except BaseException:
        os.close(fd)
        raise
    if len(first_bytes) < _SMALL_BYTES:
        os.close(fd)
        return first_bytes
    with open(fd, "rb") as file:
        return first_bytes + file.read()


def _move_above_stdio(new_socket: socket.socket) -> socket.socket:
    """Returns the socket with a descriptor number above 2. A child gets other files as its descriptors 0 to 2, the
    standard streams.
    """
    if new_socket.fileno() > 2:
        return new_socket
    with new_socket:
        return socket.socket(fileno=fcntl.fcntl(new_socket.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
