"""fork(2) that reaches other machines, from within a Python program.

:func:`checkpoint` marks a point of the program, and returns there many times: in the parent, which gets a
:class:`Seed`, and in every child that is forked from the seed on any node, which gets a :class:`Child`::

    who = farfork.checkpoint()
    if who.is_child:
        who.write_result(str(work_on(int(who.payload))))
    else:
        print(who)                  # farfork fork SEED --to n2 --payload -

:class:`Executor` does the same for functions, with the interface of :mod:`concurrent.futures`::

    with farfork.Executor(nodes=["n2", "n3"]) as executor:
        for result in executor.map(predict, requests):
            ...

:func:`branch` makes a child that runs cells of code, one after the other.

A child's memory is the parent's, so a child has all objects that it needs. Only results are pickled.
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
    "PayloadMissing",
    "RemoteTraceback",
    "Seed",
    "binary",
    "branch",
    "checkpoint",
    "load_ipython_extension",
]

__version__ = "0.1.0"
