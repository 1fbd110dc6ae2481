"""Makes the checkpoints of executors. Repeats a checkpoint that fails because another thread opens or closes files."""

from __future__ import annotations

import time
import traceback

from . import _connection, _task
from ._checkpoint import Child, Seed, begin_children
from ._checkpoint_lock import checkpoint_lock
from ._copied_threads import begin_worker
from ._errors import CheckpointError

#: A checkpoint fails while another thread opens and closes files, so it is tried this many times.
_CHECKPOINTS_MAX = 5

#: Time between two attempts, in seconds. In this time, another thread can get the lock and close a connection that the
#: daemon has closed.
_RETRY_INTERVAL_S = 0.02

#: A seed that was not yet handed over to the executor's connection is dropped after this time, in seconds.
_HANDOVER_TTL_S = 60.0


def make_seed() -> Seed | Child:
    """Makes a checkpoint. Repeats a checkpoint that fails because another thread opens or closes files."""
    for attempt in range(_CHECKPOINTS_MAX):
        with checkpoint_lock:
            # While this thread waited for the lock, this process may have become a child of another thread's checkpoint.
            # Then this call raises. It is outside of the try block, because only the thread that makes the checkpoint may
            # end the child.
            _connection.require_no_child()
            try:
                return begin_children(begin_worker, ttl=_HANDOVER_TTL_S)
            except BaseException as error:
                if _connection.child_id is not None:
                    # A child must not continue with the program's own code.
                    traceback.print_exc()
                    _task.end_child(1)
                is_transient = isinstance(error, CheckpointError) and "keeps changing" in str(error)
                if not is_transient or attempt == _CHECKPOINTS_MAX - 1:
                    raise
        time.sleep(_RETRY_INTERVAL_S)
    raise AssertionError("the last attempt returns or raises")
