"""Threads that multiply matrices, each its own with the result of the one before, and say a sum at their end.

usage: matrices.py
"""

import threading
import zlib

import numpy

THREADS_COUNT = 3
STEPS_COUNT = 4000
SIZE = 160


class Chain(threading.Thread):
    def __init__(self, seed):
        super().__init__()
        random = numpy.random.default_rng(seed)
        self.matrix = random.standard_normal((SIZE, SIZE)) / SIZE**0.5
        self.state = random.standard_normal((SIZE, SIZE))
        self.is_half_way = threading.Event()
        self.sum = 0

    def run(self):
        for step in range(STEPS_COUNT):
            self.state = numpy.tanh(self.matrix @ self.state + 0.01)
            self.sum = zlib.crc32(self.state.tobytes(), self.sum)
            if step == STEPS_COUNT // 4:
                self.is_half_way.set()


def main():
    chains = [Chain(seed) for seed in range(THREADS_COUNT)]
    for chain in chains:
        chain.start()
    for chain in chains:
        chain.is_half_way.wait()
    print("half", flush=True)
    for chain in chains:
        chain.join()
    print("result", *(chain.sum for chain in chains))
    print(".", flush=True)


main()
