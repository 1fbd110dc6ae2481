"""A dict of 200,000 entries, used by four calls: by children that have it in memory, and by workers that get it pickled.

    pip install ./python ray        # Ray is measured where it is there
    farfork up --nodes 3
    python3 python/examples/against_pickling.py n2 n3

Each figure is the time from the call until the last of the four results is there, with workers that are ready: the median of
the rounds, the best and the worst. Only farfork's calls run on other nodes; each of its rounds makes a seed of the
program anew, as the dict may have changed. The last row but Ray's is what one machine's fork(2) does with no pickling at all.
"""

import importlib.util
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Callable

import farfork

ENTRIES = 200_000
CALLS = 4
ROUNDS = 11

table = {f"key {number}": (number, f"value {number}") for number in range(ENTRIES)}
expected = [sum(range(part, ENTRIES, CALLS)) for part in range(CALLS)]


def add_up(table: dict[str, tuple[int, str]], part: int) -> int:
    """Looks up a quarter of the keys."""
    return sum(table[f"key {number}"][0] for number in range(part, ENTRIES, CALLS))


def add_up_global(part: int) -> int:
    return add_up(table, part)


def measure(run: Callable[[], list[int]]) -> list[float]:
    """Seconds that each round took, in rising order."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        results = run()
        times.append(time.perf_counter() - begin)
        assert results == expected, results
    return sorted(times)


def with_farfork(nodes: list[str]) -> list[float]:
    with farfork.Executor(nodes) as executor:
        list(executor.map(abs, range(CALLS)))  # It has its connection.
        return measure(lambda: list(executor.map(add_up_global, range(CALLS))))


def with_pickles(executor: Executor) -> list[float]:
    with executor:
        list(executor.map(abs, range(CALLS)))  # Its workers are there.
        return measure(lambda: list(executor.map(add_up, [table] * CALLS, range(CALLS))))


def with_fork() -> list[float]:
    """Workers forked for each round, so that they have the dict as it is."""

    def run() -> list[int]:
        with ProcessPoolExecutor(CALLS, multiprocessing.get_context("fork")) as executor:
            return list(executor.map(add_up_global, range(CALLS)))

    return measure(run)


def with_ray() -> list[float]:
    import ray  # type: ignore[import-not-found,unused-ignore]

    ray.init(num_cpus=CALLS, log_to_driver=False, include_dashboard=False)
    remote = ray.remote(add_up)
    ray.get([remote.remote({}, CALLS * ENTRIES) for _ in range(CALLS)])  # Its workers are there.

    def run() -> list[int]:
        shared = ray.put(table)
        return list(ray.get([remote.remote(shared, part) for part in range(CALLS)]))

    try:
        return measure(run)
    finally:
        ray.shutdown()


def main() -> None:
    nodes = sys.argv[1:]
    # First, while no other library has sockets open, which are refused.
    rows = [(f"farfork.Executor on {', '.join(nodes) or 'the cluster'}", with_farfork(nodes))]
    for method in ("spawn", "forkserver", "fork"):
        pool = ProcessPoolExecutor(CALLS, multiprocessing.get_context(method))
        rows.append((f"ProcessPoolExecutor ({method}), the dict pickled for each call", with_pickles(pool)))
    rows.append(("ProcessPoolExecutor (fork) made for each round, the dict in its memory", with_fork()))
    if importlib.util.find_spec("ray"):
        rows.append(("Ray, the dict put once into its store", with_ray()))
    print(f"{CALLS} calls with a dict of {ENTRIES:,} entries: median, best and worst of {ROUNDS} rounds, in ms\n")
    print("| | median | best | worst |\n|---|---|---|---|")
    for name, times in rows:
        figures = [statistics.median(times), times[0], times[-1]]
        print(f"| {name} | " + " | ".join(f"{seconds * 1000:.0f}" for seconds in figures) + " |")


if __name__ == "__main__":
    main()
