"""A scheduler for Dask: the tasks of a graph run in children of this process, on the nodes of the cluster.

::

    import farfork.dask

    dask.compute(frame, scheduler=farfork.dask.get, nodes=["n2", "n3"])
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, Sequence

import cloudpickle
from dask import config
from dask._task_spec import convert_legacy_graph, fuse_linear_task_spec
from dask.core import flatten
from dask.local import execute_task, get_async, get_sync
from dask.optimization import cull
from dask.utils import ensure_dict

from . import _connection, _task
from ._backend import BackendExecutor, is_child
from ._executor import Executor

#: A task of a graph may be tiny, so several are sent to a worker together. Dask's scheduler for processes uses the same
#: number.
_CHUNK_SIZE = 6

# Dask would shuffle frames through files, but a child's files are visible to that child only.
if config.get("dataframe.shuffle.method", None) in (None, "disk"):
    config.set({"dataframe.shuffle.method": "tasks"})

_EXECUTOR_OPTIONS = frozenset(inspect.signature(Executor).parameters) - {"max_workers", "shared", "reuse_workers"}


def get(
    dsk: Mapping[Any, Any],
    keys: Sequence[Any] | Any,
    num_workers: int | None = None,
    optimize_graph: bool = True,
    chunksize: int | None = None,
    **options: Any,
) -> Any:
    """Computes the values of keys of a graph, like the schedulers of Dask.

    Takes the arguments of :class:`farfork.Executor`, apart from ``max_workers`` (use ``num_workers``), ``shared`` and
    ``reuse_workers``. Workers are forked at the start of each computation. They have the graph with all its data in memory:
    a task is sent as a number, with the results of other tasks that it needs.

    In a child, which cannot fork, the graph is computed in the child itself.
    """
    if is_child():
        return get_sync(dsk, keys)
    executor_options = {name: options.pop(name) for name in list(options) if name in _EXECUTOR_OPTIONS}
    graph = _prepare_graph(dsk, keys, optimize_graph)
    max_workers = num_workers or config.get("num_workers", None)
    executor = BackendExecutor(cloudpickle, max_workers=max_workers, **executor_options)
    executor.share(graph.values())
    try:
        return get_async(
            lambda _, batch: executor.submit(_run_batch, batch),
            executor.max_workers,
            graph,
            keys,
            get_id=_worker_name,
            pack_exception=_pack_exception,
            raise_exception=_raise_exception,
            chunksize=chunksize or config.get("chunksize", None) or _CHUNK_SIZE,
            **options,
        )
    finally:
        # After an error or an interrupt, the remaining tasks are not needed.
        executor.abort()


def _prepare_graph(dsk: Any, keys: Any, optimize_graph: bool) -> dict[Any, Any]:
    """Returns the tasks that the keys need. Consecutive tasks are merged."""
    needed, _ = cull(ensure_dict(dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dsk), keys)
    # Convert the graph before it is shared: the scheduler would otherwise make new objects, which workers do not have.
    graph = convert_legacy_graph(needed)
    if optimize_graph:
        graph = fuse_linear_task_spec(graph, set(flatten(keys) if isinstance(keys, list) else [keys]))
    return dict(graph)


def _run_batch(tasks: list[Any]) -> list[Any]:
    """Runs several tasks, like `batch_execute_tasks` of Dask."""
    return [_task.run_call(execute_task, *task) for task in tasks]


def _worker_name() -> str | None:
    return _connection.child_id


def _pack_exception(error: BaseException, _dumps: Callable[[Any], Any]) -> tuple[bytes, None]:
    """Pickles an exception with its traceback."""
    return _task.encode_failure(error), None


def _raise_exception(failure: bytes, _traceback: None) -> None:
    _task.decode_result(failure)
