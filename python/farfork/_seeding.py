"""The checkpoints of executors, and their children."""

from __future__ import annotations

import time
import traceback

from . import _connection, _task
from ._checkpoint import Child, Seed, checkpoint, checkpoint_lock
from ._errors import CheckpointError

#: A checkpoint fails while another thread opens and closes files, so it is tried this many times.
_CHECKPOINTS_MAX = 5

#: A seed that was not yet handed over to the executor's connection is dropped after this time, in seconds.
_HANDOVER_TTL_S = 60.0

#: Whether this process is a child that runs calls of an executor.
_is_call_child = False


def make_seed() -> Seed | Child:
    """Makes a checkpoint. Repeats it if another thread opens or closes files meanwhile, which rarely lasts."""
    global _is_call_child
    for attempt in range(_CHECKPOINTS_MAX):
        try:
            with checkpoint_lock:
                seed_or_child = checkpoint(ttl=_HANDOVER_TTL_S)
                _is_call_child = seed_or_child.is_child
            return seed_or_child
        except BaseException as error:
            if _connection.child_id is not None:
                # A child must not continue with the program's own code.
                traceback.print_exc()
                _task.end_child(1)
            is_transient = isinstance(error, CheckpointError) and "keeps changing" in str(error)
            if not is_transient or attempt == _CHECKPOINTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def stand_still_in_call_child() -> None:
    """In a child of an executor: blocks. All calls and the threads that wait for them belong to the parent."""
    with checkpoint_lock:
        is_call_child = _is_call_child
    while is_call_child:
        time.sleep(3600)
