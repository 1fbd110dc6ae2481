"""A pool of processes and threads beside it: each process multiplies matrices for the tasks that it is given, the threads
hand tasks out and take results in, and each says what came of it at the end.

usage: pool.py
"""

import multiprocessing
import os
import threading
import zlib

import numpy

PROCESSES_COUNT = 3
TASKS_COUNT = 360
STEPS_COUNT = 40
SIZE = 100
ROUNDS_COUNT = 3


def multiply(task):
    random = numpy.random.default_rng(task)
    matrix = random.standard_normal((SIZE, SIZE)) / SIZE**0.5
    state = random.standard_normal((SIZE, SIZE))
    for _ in range(STEPS_COUNT):
        state = numpy.tanh(matrix @ state + 0.01)
    return zlib.crc32(state.tobytes()), state[0], os.getpid()


class Beside(threading.Thread):
    """Works itself, and asks the pool from time to time."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.sum = 0

    def run(self):
        for one in range(ROUNDS_COUNT):
            self.sum = zlib.crc32(str(multiply(-one % 7)[0]).encode(), self.sum)
            for crc, _, _ in self.pool.map(multiply, range(10 * one, 10 * one + 10)):
                self.sum = zlib.crc32(str(crc).encode(), self.sum)


def main():
    # Processes are forked before there are threads of its own.
    with multiprocessing.get_context("fork").Pool(PROCESSES_COUNT) as pool:
        thread = Beside(pool)
        total, rows, workers = 0, numpy.zeros(SIZE), set()
        for done, (crc, row, pid) in enumerate(pool.imap(multiply, range(TASKS_COUNT), chunksize=2)):
            total = zlib.crc32(str(crc).encode(), total)
            rows += row
            workers.add(pid)
            if done == TASKS_COUNT // 6:
                thread.start()
                print("half", flush=True)
        thread.join()
        pool.close()
        pool.join()
    # A process that died is replaced by another, of another number.
    assert len(workers) <= PROCESSES_COUNT
    print("result", total, zlib.crc32(rows.tobytes()), thread.sum)
    print(".", flush=True)


main()
