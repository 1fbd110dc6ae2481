"""A dict of 200,000 entries, used by four calls: by children that have it in memory, and by workers that get it pickled.

    pip install ./python ray        # Ray is measured where it is there
    farfork up --nodes 3
    python3 python/examples/against_pickling.py n2 n3

Each figure is the time from the call until the last of the four results is there, with workers that are ready, as the
best of five rounds. Only farfork's calls run on other nodes.
"""

import importlib.util
import multiprocessing
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Callable

import farfork

ENTRIES = 200_000
CALLS = 4
ROUNDS = 5

table = {f"key {number}": (number, f"value {number}") for number in range(ENTRIES)}
expected = [sum(range(part, ENTRIES, CALLS)) for part in range(CALLS)]


def add_up(table: dict[str, tuple[int, str]], part: int) -> int:
    """Looks up a quarter of the keys."""
    return sum(table[f"key {number}"][0] for number in range(part, ENTRIES, CALLS))


def add_up_global(part: int) -> int:
    return add_up(table, part)


def best(run: Callable[[], list[int]]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        results = run()
        times.append(time.perf_counter() - begin)
        assert results == expected, results
    return min(times)


def with_farfork(nodes: list[str]) -> float:
    with farfork.Executor(nodes) as executor:
        return best(lambda: list(executor.map(add_up_global, range(CALLS))))


def with_pickles(executor: Executor) -> float:
    with executor:
        list(executor.map(abs, range(CALLS)))  # Its workers are there.
        return best(lambda: list(executor.map(add_up, [table] * CALLS, range(CALLS))))


def with_ray() -> float:
    import ray  # type: ignore[import-not-found,unused-ignore]

    ray.init(num_cpus=CALLS, log_to_driver=False)
    remote = ray.remote(add_up)
    ray.get([remote.remote({}, CALLS * ENTRIES) for _ in range(CALLS)])

    def run() -> list[int]:
        shared = ray.put(table)
        return list(ray.get([remote.remote(shared, part) for part in range(CALLS)]))

    try:
        return best(run)
    finally:
        ray.shutdown()


def main() -> None:
    nodes = sys.argv[1:]
    spawn = multiprocessing.get_context("spawn")
    rows = [(f"farfork.Executor on {', '.join(nodes) or 'the cluster'}", with_farfork(nodes))]
    rows.append(("ProcessPoolExecutor, the dict pickled for each call", with_pickles(ProcessPoolExecutor(CALLS, spawn))))
    if importlib.util.find_spec("ray"):
        rows.append(("Ray, the dict put once into its store", with_ray()))
    print(f"{CALLS} calls with a dict of {ENTRIES} entries")
    for name, seconds in rows:
        print(f"{seconds * 1000:10.1f} ms  {name}")


if __name__ == "__main__":
    main()
