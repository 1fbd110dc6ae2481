"""A pool of processes, and a thread. Each process multiplies matrices for the tasks that it gets. Threads submit tasks
and collect results. All repeat the same work until SIGUSR2. Then the program prints the checksums.

usage: pool.py
"""

import multiprocessing
import os
import signal
import threading
import zlib

import numpy

PROCESSES_COUNT = 3
TASKS_COUNT = 180
STEPS_COUNT = 40
SIZE = 100
ROUNDS_COUNT = 3

told = threading.Event()


def multiply(task):
    random = numpy.random.default_rng(task)
    matrix = random.standard_normal((SIZE, SIZE)) / SIZE**0.5
    state = random.standard_normal((SIZE, SIZE))
    for _ in range(STEPS_COUNT):
        state = numpy.tanh(matrix @ state + 0.01)
    return zlib.crc32(state.tobytes()), state[0], os.getpid()


class Beside(threading.Thread):
    """A thread that computes, and gives tasks to the pool from time to time."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.sum = 0

    def run(self):
        for one in range(ROUNDS_COUNT):
            self.sum = zlib.crc32(str(multiply(-one % 7)[0]).encode(), self.sum)
            for crc, _, _ in self.pool.map(multiply, range(10 * one, 10 * one + 10)):
                self.sum = zlib.crc32(str(crc).encode(), self.sum)


def work(pool, say_half):
    """Returns the results of all tasks, and the processes that did them."""
    thread = Beside(pool)
    total, rows, workers = 0, numpy.zeros(SIZE), set()
    for done, (crc, row, pid) in enumerate(pool.imap(multiply, range(TASKS_COUNT), chunksize=2)):
        total = zlib.crc32(str(crc).encode(), total)
        rows += row
        workers.add(pid)
        if done == TASKS_COUNT // 3:
            thread.start()
            say_half()
    thread.join()
    return (total, zlib.crc32(rows.tobytes()), thread.sum), workers


def main():
    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    # The processes are forked before this process starts threads.
    with multiprocessing.get_context("fork").Pool(PROCESSES_COUNT) as pool:
        result, workers = work(pool, lambda: print("half", flush=True))
        results = {result}
        while not told.is_set():
            result, others = work(pool, lambda: None)
            results.add(result)
            workers |= others
        pool.close()
        pool.join()
    # If a process had died, the pool would have replaced it by a process with another id.
    assert len(workers) <= PROCESSES_COUNT
    print("result", *(number for result in results for number in result))
    print(".", flush=True)


main()
