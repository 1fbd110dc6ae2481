"""Tests the scheduler for Dask, with the real package."""

import time
import unittest
from functools import partial
from typing import Any

import dask
import dask.array
import dask.bag
import numpy as np
from dask.utils_test import GetFunctionTestMixin

import farfork.dask
from farfork._errors import RemoteTraceback

from . import nodes
from .test_faulty_calls import fork_and_return

get = partial(farfork.dask.get, nodes=nodes())


class Get(GetFunctionTestMixin, unittest.TestCase):  # type: ignore[misc]
    """Dask's own tests of schedulers."""

    get = staticmethod(get)


class Scheduler(unittest.TestCase):
    def test_data_in_the_graph_is_not_pickled(self) -> None:
        data = np.arange(4_000_000.0)
        array = dask.array.from_array(data, chunks=100_000)
        with dask.config.set(scheduler=get):
            self.assertEqual(float((array * 2).sum().compute()), 2 * float(data.sum()))
            unpicklable = dask.delayed(sum)([value for value in (1, 2)])
            lock = dask.delayed(type)(_Unpicklable())
            self.assertEqual(unpicklable.compute(), 3)
            self.assertIs(lock.compute(), _Unpicklable)

    def test_options_are_the_options_of_an_executor(self) -> None:
        bag = dask.bag.range(1000, npartitions=20).map(lambda number: number * number)
        total = bag.sum().compute(scheduler=farfork.dask.get, nodes=nodes(), num_workers=3, memory="512MiB")
        self.assertEqual(total, sum(number * number for number in range(1000)))
        with self.assertRaisesRegex(ValueError, "is not a size"):
            bag.sum().compute(scheduler=farfork.dask.get, memory="much")

    def test_results_may_be_functions(self) -> None:
        self.assertEqual(dask.delayed(lambda number: lambda: number)(3).compute(scheduler=get)(), 3)

    def test_an_exception_has_its_traceback_and_ends_the_tasks_that_run(self) -> None:
        tasks = [dask.delayed(divide_or_sleep)(number) for number in range(4)]
        with self.assertRaises(ZeroDivisionError) as raised:
            dask.compute(*tasks, scheduler=get, num_workers=4, chunksize=1)
        self.assertIsInstance(raised.exception.__cause__, RemoteTraceback)
        self.assertIn("divide_or_sleep", str(raised.exception.__cause__))

    def test_frames_are_shuffled_without_files(self) -> None:
        self.assertEqual(dask.config.get("dataframe.shuffle.method"), "tasks")

    def test_a_forked_copy_runs_no_further_call_of_its_chunk(self) -> None:
        tasks = [dask.delayed(fork_and_return)(number) for number in range(4)]
        self.assertEqual(dask.compute(tasks, scheduler=get, num_workers=1), ([0] * 4,))

    def test_a_task_may_compute(self) -> None:
        self.assertEqual(dask.delayed(compute_sum)(10).compute(scheduler=get), 10.0)


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("this is never pickled")


def divide_or_sleep(number: int) -> float:
    if number:
        time.sleep(3600)
    return 1 / number


def compute_sum(count: int) -> float:
    return float(dask.array.ones(count, chunks=2).sum().compute(scheduler=farfork.dask.get))


if __name__ == "__main__":
    unittest.main()
