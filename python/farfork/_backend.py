"""Code that the back ends for other libraries share."""

from __future__ import annotations

from typing import Any, Iterable

from . import _connection
from ._copied_threads import stand_still_if_copied
from ._executor import Executor


def is_child() -> bool:
    """Whether this process is a child, which cannot fork children. Does not return in a copied thread of the program."""
    stand_still_if_copied()
    return _connection.child_id is not None


class BackendExecutor(Executor):
    """An executor for the calls of one job. The first call forks the workers.

    Later calls are pickled by cloudpickle if the standard library cannot pickle them: jobs of these libraries have
    lambdas and local functions. A later call never forks new workers, because the thread that completes other calls may
    submit it. A fork at that moment would capture the program's own thread in the middle of its code, and each child
    would continue that code.
    """

    def __init__(self, cloudpickle: Any, **options: Any) -> None:
        self._cloudpickle = cloudpickle
        super().__init__(**options)

    def share(self, objects: Iterable[object]) -> None:
        """Makes calls refer to these objects instead of pickling them. They must not change."""
        for value in objects:
            self._pickling.shared.add(value)
