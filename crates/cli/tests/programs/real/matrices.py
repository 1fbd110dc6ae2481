"""Threads that multiply matrices. Each thread works on the result of its previous multiplication. All repeat the same
work until SIGUSR2. Then the program prints the checksums.

usage: matrices.py
"""

import signal
import threading
import zlib

import numpy

THREADS_COUNT = 3
STEPS_COUNT = 2000
SIZE = 160
WAIT_SECONDS = 1

told = threading.Event()


class Chain(threading.Thread):
    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        self.is_half_way = threading.Event()
        self.sums = set()

    def run(self):
        while not self.sums or not told.is_set():
            self.sums.add(self.multiply())

    def multiply(self):
        random = numpy.random.default_rng(self.seed)
        matrix = random.standard_normal((SIZE, SIZE)) / SIZE**0.5
        state = random.standard_normal((SIZE, SIZE))
        crc = 0
        for step in range(STEPS_COUNT):
            state = numpy.tanh(matrix @ state + 0.01)
            crc = zlib.crc32(state.tobytes(), crc)
            if step == STEPS_COUNT // 2:
                self.is_half_way.set()
        return crc


def main():
    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    chains = [Chain(seed) for seed in range(THREADS_COUNT)]
    for chain in chains:
        chain.start()
    for chain in chains:
        chain.is_half_way.wait()
    print("half", flush=True)
    for chain in chains:
        # A signal that arrives just before a wait does not interrupt it, and Python's handler runs only after the wait.
        # So the wait is short.
        while chain.is_alive():
            chain.join(WAIT_SECONDS)
    print("result", *(crc for chain in chains for crc in chain.sums))
    print(".", flush=True)


main()
