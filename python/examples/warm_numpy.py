"""A hundred calls in a process that has imported NumPy: by its children, and by local forks.

    pip install ./python numpy
    farfork up --nodes 2
    python3 python/examples/warm_numpy.py n1 n2
    python3 python/examples/warm_numpy.py --threads 10 n1 n2  # ten more threads, which a child of fork(2) lacks

Each figure is the time from the call until the first or the last result arrives: the median, best and worst of the rounds,
back to back and after 150 ms of idle time. A round includes making the seed of the program for its calls. For comparison,
local forks of the program compute and return the same, as many at once as two nodes start.
"""

import argparse
import os
import pickle
import statistics
import threading
import time
import warnings
from typing import Callable, Iterator

import numpy

import farfork

CALLS = 100
ROUNDS = 21
IDLE_S = 0.15
AT_ONCE = 16

matrix = numpy.random.default_rng(7).random((512, 512))
expected = [float(row.sum()) for row in matrix[:CALLS]]


def add_up(row: int) -> float:
    return float(matrix[row].sum())


def in_local_forks(calls: int) -> Iterator[float]:
    """Yields the results of local forks of this process, in order."""
    running: list[tuple[int, int]] = []

    def receive() -> float:
        pid, pipe = running.pop(0)
        with os.fdopen(pipe, "rb") as results:
            result: float = pickle.load(results)
        os.waitpid(pid, 0)
        return result

    for row in range(calls):
        if len(running) == AT_ONCE:
            yield receive()
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(sink, pickle.dumps(add_up(row)))
            os._exit(0)
        os.close(sink)
        running.append((pid, source))
    while running:
        yield receive()


def measure(run: Callable[[int], Iterator[float]], calls: int, idle_s: float) -> list[tuple[float, float]]:
    """Returns the seconds until the first and the last result of each round."""
    times = []
    for _ in range(ROUNDS):
        time.sleep(idle_s)
        begin = time.perf_counter()
        results, moments = [], []
        for result in run(calls):
            results.append(result)
            moments.append(time.perf_counter() - begin)
        assert results == expected[:calls], results
        times.append((moments[0], moments[-1]))
    return times


def show(name: str, seconds: list[float]) -> None:
    figures = [statistics.median(seconds), min(seconds), max(seconds)]
    print(f"| {name} | " + " | ".join(f"{each * 1000:.1f}" for each in figures) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Times calls by children of this process, on the nodes, and by local forks.")
    parser.add_argument("nodes", nargs="+", metavar="NODE")
    parser.add_argument("--threads", type=int, default=0, help="number of additional threads, which wait in this process (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    for _ in range(arguments.threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    threads = f"{threading.active_count()} Python threads"
    print(f"{numpy.__name__} {numpy.__version__}, {threads}: median, best and worst of {ROUNDS} rounds, in ms\n")
    print("| | median | best | worst |\n|---|---|---|---|")
    with farfork.Executor(arguments.nodes, reuse_workers=False) as executor:
        list(executor.map(add_up, range(CALLS)))  # Connects, and lets nodes prepare for further calls.
        ways = {"farfork": lambda calls: executor.map(add_up, range(calls)), "os.fork": in_local_forks}
        for calls in (1, CALLS):
            for idle_s in (0, IDLE_S):
                for name, run in ways.items():
                    times = measure(run, calls, idle_s)
                    called = f"{name}, {calls} at once, after {idle_s * 1000:.0f} ms"
                    show(f"{called}: first result", [first for first, _ in times])
                    if calls > 1:
                        show(f"{called}: last result", [last for _, last in times])


if __name__ == "__main__":
    main()
