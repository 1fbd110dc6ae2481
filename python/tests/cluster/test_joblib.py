"""Tests the back end for joblib, with the real package."""

import os
import threading
import time
import unittest
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import joblib
import numpy as np

import farfork.joblib

from . import PATIENCE_S, command, nodes
from .test_faulty_calls import fork_and_return

#: Data that calls store in their worker.
kept: list[int] = []


def node_and_sum(array: "np.ndarray[Any, Any]", row: int) -> tuple[str, float]:
    return os.uname().nodename, float(array[row].sum())


def write_to(array: "np.ndarray[Any, Any]") -> None:
    array[0] = 1.0


def keep(number: int) -> list[int]:
    kept.append(number)
    return list(kept)


def multiply_nested(number: int) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(joblib.Parallel(n_jobs=2, backend="farfork")(joblib.delayed(pow)(number, power) for power in (1, 2)))


def apply(values: list[int], function: Any) -> int:
    return int(function(values))


def wait_for_interrupt(number: int) -> int:
    if number == 2:
        raise KeyError("two")
    time.sleep(3600)
    return number


class Backend(unittest.TestCase):
    def parallel(self, **options: Any) -> joblib.Parallel:
        return joblib.Parallel(n_jobs=4, backend="farfork", nodes=nodes(), **options)

    def test_calls_run_in_children_with_the_serial_results(self) -> None:
        array = np.arange(4_000_000.0).reshape(1000, 4000)
        outcomes = self.parallel()(joblib.delayed(node_and_sum)(array, row) for row in range(60))
        self.assertEqual([total for _, total in outcomes], [float(array[row].sum()) for row in range(60)])

    def test_calls_may_have_any_keyword(self) -> None:
        calls = [joblib.delayed(apply)([1, 2, 3], function=function) for function in (max, min)]
        self.assertEqual(self.parallel()(calls), [3, 1])

    def test_a_context_chooses_nodes_and_uses_all_processors(self) -> None:
        with joblib.parallel_config(backend="farfork", nodes=nodes()):
            self.assertEqual(joblib.effective_n_jobs(-1), 2 * joblib.cpu_count())
            squares = joblib.Parallel()(joblib.delayed(lambda number: number * number)(number) for number in range(500))
        self.assertEqual(squares, [number * number for number in range(500)])

    def test_large_arrays_are_read_only_in_every_call(self) -> None:
        array = np.zeros(1_000_000)
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "read-only"):
                self.parallel()(joblib.delayed(write_to)(array) for _ in range(8))
        self.parallel(mmap_mode="c")(joblib.delayed(write_to)(array) for _ in range(8))
        self.assertEqual(array[0], 0.0)

    def test_each_parallel_has_the_current_state(self) -> None:
        kept.clear()
        kept.append(1)
        self.assertEqual(self.parallel()([joblib.delayed(keep)(2)]), [[1, 2]])
        kept.append(3)
        self.assertEqual(self.parallel()([joblib.delayed(keep)(4)]), [[1, 3, 4]])

    def test_an_array_that_changes_between_calls_is_seen(self) -> None:
        array = np.zeros((10, 200_000))
        with self.parallel() as parallel:
            for value in range(3):
                array[:] = value
                sums = parallel(joblib.delayed(node_and_sum)(array, row) for row in range(10))
                self.assertEqual([total for _, total in sums], [value * 200_000.0] * 10)

    def test_an_exception_ends_the_calls_that_run(self) -> None:
        with self.assertRaises(KeyError) as raised:
            self.parallel()(joblib.delayed(wait_for_interrupt)(number) for number in range(4))
        self.assertIn("wait_for_interrupt", str(raised.exception.__cause__))
        deadline = time.monotonic() + PATIENCE_S
        while own_children() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(own_children(), [])

    def test_a_generator_gives_results_as_they_are_ready(self) -> None:
        results = self.parallel(return_as="generator")(joblib.delayed(pow)(number, 2) for number in range(20))
        self.assertEqual(list(results), [number * number for number in range(20)])

    def test_a_call_within_a_call_runs_in_the_worker(self) -> None:
        self.assertEqual(self.parallel()([joblib.delayed(multiply_nested)(3)] * 3), [[3, 9]] * 3)

    def test_two_threads_may_compute_at_once(self) -> None:
        results: list[Any] = []

        def compute() -> None:
            for _ in range(3):
                results.append(joblib.Parallel(n_jobs=2, backend="farfork")(joblib.delayed(abs)(-number) for number in range(4)))

        output = StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            threads = [threading.Thread(target=compute) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        # If copied threads caused warnings, workers would print them.
        self.assertEqual((results, output.getvalue()), ([[0, 1, 2, 3]] * 6, ""))

    def test_a_forked_copy_runs_no_further_call_of_its_chunk(self) -> None:
        statuses = self.parallel(batch_size=4)(joblib.delayed(fork_and_return)(number) for number in range(4))
        self.assertEqual(statuses, [0] * 4)

    def test_workers_call_the_initializer(self) -> None:
        kept.clear()
        outcomes = self.parallel(initializer=kept.append, initargs=(7,))([joblib.delayed(keep)(8)])
        self.assertEqual(outcomes, [[7, 8]])


def own_children() -> list[str]:
    seeds = [seed["seed"] for seed in command("seeds")["seeds"] if seed["parent_pid"] == os.getpid()]
    return [child["child"] for child in command("ps", "--running")["children"] if child["seed"] in seeds]


if __name__ == "__main__":
    unittest.main()
