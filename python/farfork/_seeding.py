"""The checkpoints of executors, and the children that they lead to."""

from __future__ import annotations

import time

from ._checkpoint import Child, Seed, checkpoint, checkpoint_lock
from ._errors import CheckpointError

#: A checkpoint fails while another thread opens and closes files; so many are tried.
_CHECKPOINTS_MAX = 5

#: A seed that was made and not yet handed over to the executor's connection is dropped after so long, in seconds.
_HANDOVER_TTL_S = 60.0

#: Whether this process is a child that runs calls of an executor.
_is_call_child = False


def make_seed() -> Seed | Child:
    """A checkpoint. Another thread may open or close a file meanwhile, which is over soon."""
    global _is_call_child
    for attempt in range(_CHECKPOINTS_MAX):
        try:
            with checkpoint_lock:
                seed_or_child = checkpoint(ttl=_HANDOVER_TTL_S)
                _is_call_child = seed_or_child.is_child
            return seed_or_child
        except CheckpointError as error:
            if "keeps changing" not in str(error) or attempt == _CHECKPOINTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def stand_still_in_call_child() -> None:
    """In a child of an executor, all calls are the parent's, and so are the threads that wait for them: they learn nothing."""
    with checkpoint_lock:
        is_call_child = _is_call_child
    while is_call_child:
        time.sleep(3600)
