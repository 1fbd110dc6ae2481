"""A back end for joblib: the calls of ``joblib.Parallel`` run in children of this process, on the nodes of the cluster.

Importing this module registers it::

    import farfork.joblib

    with joblib.parallel_config(backend="farfork", nodes=["n2", "n3"]):
        cross_val_score(model, X, y, cv=8)
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from concurrent.futures import Future
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Callable

import joblib
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend

from . import _task
from ._backend import BackendExecutor, is_child
from ._options import split_commas

try:
    import cloudpickle
except ImportError:  # joblib before 1.6 has its own.
    from joblib.externals import cloudpickle

try:
    import threadpoolctl
except ImportError:
    threadpoolctl = None

Callback = Callable[[Any], None]


class FarforkBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs batches of calls in workers, which are forked at the first batch of each ``Parallel``.

    Takes the arguments of :class:`farfork.Executor`, apart from ``max_workers`` (use ``n_jobs``) and ``reuse_workers``. With
    ``n_jobs=-1``, the default, each node has as many workers as this machine has processors.

    Arrays of at least ``max_nbytes`` in the first call are not pickled: workers have them in memory, read-only, as with
    joblib's own back end for processes.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    backend_kwargs: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: The executor's arguments, including the options of the current ``Parallel``.
        self._options = self.backend_kwargs
        self._executor: BackendExecutor | None = None
        #: The shared arrays: collected before the workers are forked.
        self._arrays: list[Any] = []
        #: Smallest size of a shared array; ``None`` shares none.
        self._shared_bytes_min: int | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs == 1:
            return 1
        if is_child():
            warnings.warn("a child of farfork cannot fork children: setting n_jobs=1", stacklevel=3)
            return 1
        return n_jobs if n_jobs > 0 else max(self._processors + 1 + n_jobs, 1)

    @property
    def _processors(self) -> int:
        nodes = split_commas(self._options.get("nodes"))
        return int(joblib.cpu_count()) * max(len(nodes), 1)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        max_nbytes: int | None = 1 << 20,
        mmap_mode: str | None = "r",
        prefer: str | None = None,
        require: str | None = None,
        verbose: int = 0,
        temp_folder: str | None = None,
        context: Any = None,
        **options: Any,
    ) -> int:
        """Makes the executor of one ``Parallel``. ``prefer`` and the arguments after it are for other back ends."""
        self._options = {**self.backend_kwargs, **options}
        self.parallel = parallel
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        # In other modes, calls may write to their arrays, so share none.
        self._shared_bytes_min = max_nbytes if mmap_mode == "r" else None
        self._executor = self._make_executor(n_jobs)
        return n_jobs

    def _make_executor(self, n_jobs: int) -> BackendExecutor:
        options = dict(self._options)
        initializer = partial(options.pop("initializer", None) or _do_nothing, *options.pop("initargs", ()))
        self._arrays = []
        prepare = partial(_prepare_worker, self._arrays, self._inner_threads(n_jobs), initializer)
        return BackendExecutor(cloudpickle, max_workers=n_jobs, initializer=prepare, **options)

    def _inner_threads(self, n_jobs: int) -> int | None:
        """Limit on threads of native libraries in a worker; ``None`` for the limit of this process."""
        if self.inner_max_num_threads is not None:
            if threadpoolctl is None:
                raise ValueError("inner_max_num_threads needs the package threadpoolctl: install it")
            return int(self.inner_max_num_threads)
        is_set = any(name in os.environ for name in self.MAX_NUM_THREADS_VARS)
        return None if is_set else max(self._processors // n_jobs, 1)

    def start_call(self) -> None:
        """When a ``Parallel`` is called again, forks new workers if they share arrays, which may have changed."""
        if self._arrays and self._executor is not None:
            self._executor.shutdown()
            self._executor = self._make_executor(self._executor.max_workers)

    def submit(self, func: Any, callback: Callback | None = None) -> Future[Any]:
        """Runs a batch in a worker. An error of this method becomes the outcome of the future, because joblib would
        lose the exception.
        """
        future: Future[Any]
        try:
            assert self._executor is not None, "joblib configures a back end before it submits calls"
            # The calls of the batch.
            func.items = [(_task.run_call, (call, *args), kwargs) for call, args, kwargs in func.items]
            if self._shared_bytes_min is not None and not self._executor.has_workers:
                self._arrays += _find_large_arrays(func, self._shared_bytes_min)
                self._executor.share(self._arrays)
            future = self._executor.submit(func)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        return future.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Kills the workers of running calls, and cancels the other calls."""
        if self._executor is not None:
            self._executor.abort()
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self.parallel._backend_kwargs)

    def terminate(self) -> None:
        """Ends the workers."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self.reset_batch_stats()


def _do_nothing() -> None:
    pass


def _prepare_worker(arrays: list[Any], threads: int | None, initializer: Callable[[], object]) -> None:
    """In a worker: makes the arrays read-only, because later calls get the same arrays. Limits the threads of native
    libraries, and runs the program's initializer.
    """
    for array in arrays:
        array.flags.writeable = False
    if threads is not None and threadpoolctl is not None:
        threadpoolctl.threadpool_limits(threads)
    initializer()


def _find_large_arrays(call: Callable[[], Any], bytes_min: int) -> list[Any]:
    """Returns the arrays of at least this size that a pickle of the call would contain."""
    finder = _ArrayFinder(bytes_min)
    try:
        finder.dump(call)
    except Exception:  # Pickling may raise any exception. Arrays that are not found are pickled.
        pass
    return finder.arrays


class _ArrayFinder(pickle.Pickler):
    """Pickles a call to find its large arrays, and discards the pickle."""

    def __init__(self, bytes_min: int) -> None:
        super().__init__(_DiscardingFile(), 5, buffer_callback=lambda buffer: None)
        self.arrays: list[Any] = []
        self._bytes_min = bytes_min
        self._array_type: Any = getattr(sys.modules.get("numpy"), "ndarray", ())

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, (FunctionType, ModuleType, type)):
            return 0
        if type(value) is not self._array_type or value.dtype.hasobject or value.nbytes < self._bytes_min:
            return None
        self.arrays.append(value)
        return 0


class _DiscardingFile:
    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


joblib.register_parallel_backend("farfork", FarforkBackend)
