"""Three jobs on farfork's Executor, and on other tools for the same purpose on this machine.

    pip install ./python numpy scikit-learn loky ray       # tools and jobs of missing packages are skipped
    farfork up --nodes 3
    python3 python/examples/against.py n1 n2

Each figure is the time from the construction of the executor until the last result, in ms: the median, best and worst
of the rounds. Each tool has as many workers as the machine has processors, one thread each. `again` repeats the calls
with the existing workers. Nodes that `farfork up` starts share this machine's processors, so two nodes have no more
processors than one node.
"""

import importlib.util
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import numpy

import farfork

WORKERS = os.cpu_count() or 1
ROUNDS = 7

#: Runs the calls of a job, and returns their results.
Way = Callable[["Job"], list[Any]]


class Job(NamedTuple):
    """Calls of ``function(data, argument)``, one for each argument."""

    name: str
    function: Callable[[Any, Any], Any]
    data: Any
    arguments: list[Any]


def add_up_slice(array: Any, part: int) -> float:
    size = len(array) // 16
    return float(numpy.sqrt(array[part * size : (part + 1) * size]).sum())


def look_up(table: dict[str, int], part: int) -> int:
    return sum(table[f"key {number}"] for number in range(part, len(table), 256))


def validate(data: tuple[Any, Any, list[Any]], fold: int) -> float:
    from sklearn.ensemble import RandomForestClassifier

    features, labels, folds = data
    train, test = folds[fold]
    model = RandomForestClassifier(60, random_state=0).fit(features[train], labels[train])
    return float(model.score(features[test], labels[test]))


def make_jobs() -> Iterator[Job]:
    array = numpy.random.default_rng(0).random(38_000_000)
    yield Job("16 calls over an array of 304 MB", add_up_slice, array, list(range(16)))
    table = {f"key {number}": number for number in range(1_000_000)}
    yield Job("Lookups in a dict of a million entries", look_up, table, list(range(16)))
    if importlib.util.find_spec("sklearn"):
        from sklearn.datasets import make_classification
        from sklearn.model_selection import StratifiedKFold

        features, labels = make_classification(4000, 30, random_state=0)
        folds = list(StratifiedKFold(4).split(features, labels))
        yield Job("4-fold cross-validation of a random forest", validate, (features, labels, folds), list(range(4)))


#: The call that workers run. Workers have it in memory, or get it when they are started.
_current: Callable[[Any], Any]


def _set_current(call: Callable[[Any], Any]) -> None:
    global _current
    _current = call


def _call_current(argument: Any) -> Any:
    return _current(argument)


def in_series(job: Job) -> list[Any]:
    return [job.function(job.data, argument) for argument in job.arguments]


def in_forked_pool(job: Job) -> list[Any]:
    _set_current(partial(job.function, job.data))
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as executor:
        return list(executor.map(_call_current, job.arguments))


def in_loky(job: Job) -> list[Any]:
    from loky.process_executor import ProcessPoolExecutor as LokyExecutor  # type: ignore[import-not-found,unused-ignore]

    # The data is pickled once for each worker.
    initargs = (partial(job.function, job.data),)
    with LokyExecutor(WORKERS, initializer=_set_current, initargs=initargs) as executor:
        return list(executor.map(_call_current, job.arguments))


def in_ray(job: Job) -> list[Any]:
    import ray  # type: ignore[import-not-found,unused-ignore]

    data, remote = ray.put(job.data), ray.remote(job.function)
    return list(ray.get([remote.remote(data, argument) for argument in job.arguments]))


def on_nodes(nodes: list[str]) -> Way:
    def run(job: Job) -> list[Any]:
        _set_current(partial(job.function, job.data))
        with farfork.Executor(nodes, max_workers=WORKERS) as executor:
            return list(executor.map(_call_current, job.arguments))

    return run


def again_on_nodes(nodes: list[str], job: Job) -> list[float]:
    _set_current(partial(job.function, job.data))
    with farfork.Executor(nodes, max_workers=WORKERS) as executor:
        list(executor.map(_call_current, job.arguments))
        return measure(lambda job: list(executor.map(_call_current, job.arguments)), job)


def measure(run: Way, job: Job) -> list[float]:
    """Returns the durations of the rounds in seconds, ascending."""
    expected, times = in_series(job), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        results = run(job)
        times.append(time.perf_counter() - begin)
        assert results == expected, (results, expected)
    return sorted(times)


def show(name: str, times: list[float]) -> None:
    figures = [statistics.median(times), times[0], times[-1]]
    print(f"| {name} | " + " | ".join(f"{seconds * 1000:.0f}" for seconds in figures) + " |", flush=True)


def main() -> None:
    clusters = [some for some in (sys.argv[1:2], sys.argv[1:3]) if some]
    rows: dict[str, list[tuple[str, list[float]]]] = {}
    jobs = list(make_jobs())
    # Measure farfork first: a program whose libraries have open connections cannot be forked.
    for job in jobs:
        rows[job.name] = [("serial", measure(in_series, job))]
        for nodes in clusters:
            name = f"farfork on {' and '.join(nodes)}"
            rows[job.name].append((name, measure(on_nodes(nodes), job)))
            rows[job.name].append((f"{name}, again", again_on_nodes(nodes, job)))
    others: dict[str, Way] = {"ProcessPoolExecutor (fork)": in_forked_pool}
    if importlib.util.find_spec("loky"):
        others["loky"] = in_loky
    if importlib.util.find_spec("ray"):
        import ray

        ray.init(num_cpus=WORKERS, log_to_driver=False, include_dashboard=False)
        others["Ray, started before"] = in_ray
    for job in jobs:
        rows[job.name] += [(name, measure(run, job)) for name, run in others.items()]
    for job, measured in rows.items():
        print(f"\n{job}, ms\n\n| | median | best | worst |\n|---|---|---|---|")
        for name, times in measured:
            show(name, times)


if __name__ == "__main__":
    main()
