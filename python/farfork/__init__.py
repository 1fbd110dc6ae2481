"""fork(2) that reaches other machines, from within a Python program.

:func:`checkpoint` is called once, and returns many times: in the parent, which gets a :class:`Seed`, and in every child
that is forked from the seed on any node, which gets a :class:`Child`::

    who = farfork.checkpoint()
    if who.is_child:
        who.write_result(str(work_on(int(who.payload))))
    else:
        print(who)                  # farfork fork SEED --to n2 --payload -

:class:`Executor` runs functions in such children, with the interface of :mod:`concurrent.futures`::

    with farfork.Executor(nodes=["n2", "n3"]) as executor:
        for result in executor.map(predict, requests):
            ...

:func:`branch` makes a child that runs cells of code, one after the other.

A child has a copy of the parent's memory, and so all objects that it needs. Only results are pickled.
"""

from ._binary import binary
from ._branch import Branch, branch
from ._checkpoint import Child, Seed, checkpoint
from ._errors import (
    BranchClosed,
    CheckpointError,
    ChildDied,
    ChildNotStarted,
    ChildTimeout,
    ConnectionLost,
    DaemonNotFound,
    Error,
    InitializerFailed,
    OutOfMemory,
    PayloadMissing,
    RemoteTraceback,
)
from ._executor import Executor
from ._future import ChildFuture
from ._magics import load_ipython_extension

__all__ = [
    "Branch",
    "BranchClosed",
    "CheckpointError",
    "Child",
    "ChildDied",
    "ChildFuture",
    "ChildNotStarted",
    "ChildTimeout",
    "ConnectionLost",
    "DaemonNotFound",
    "Error",
    "Executor",
    "InitializerFailed",
    "OutOfMemory",
    "PayloadMissing",
    "RemoteTraceback",
    "Seed",
    "binary",
    "branch",
    "checkpoint",
    "load_ipython_extension",
]

__version__ = "0.1.0"
