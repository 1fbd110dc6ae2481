"""A parent in Python with NumPy. It has an array, a dictionary, and a thread in each kind of wait that Python has. The
child uses all of them, imports a module that the parent had not imported, recurses deeply and collects garbage.

usage: arrays.py [MIB]
"""

import gc
import os
import queue
import sys
import threading
import time
import zlib

import numpy

PAYLOAD_PATH = "/run/farfork/payload"
TICK_SECONDS = 0.002
NAMES_COUNT = 20000
EXIT_RIGHT = 42
WORD = (1 << 64) - 1


def require(holds, why):
    if not holds:
        os.write(2, f"wrong: {why}\n".encode())
        os._exit(1)


def say(line):
    """Prints a line with one write(2)."""
    os.write(1, f"{line}\n".encode())


def words_of(count):
    """Returns SplitMix64 of 0 … count - 1, as in the C programs."""
    with numpy.errstate(over="ignore"):
        z = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))


def hash_of(words):
    return zlib.crc32(words.data) << 32 | zlib.adler32(words.data)


class Waiters:
    """Threads that wait in a queue, for an event and in a sleep."""

    def __init__(self):
        self.questions, self.answers = queue.Queue(), queue.Queue()
        self.is_ending = threading.Event()
        bodies = [self.answer, self.is_ending.wait, self.sleep]
        self.threads = [threading.Thread(target=body, daemon=True) for body in bodies]
        for thread in self.threads:
            thread.start()

    def answer(self):
        while (question := self.questions.get()) is not None:
            self.answers.put(hash_of(question))

    def sleep(self):
        while not self.is_ending.is_set():
            time.sleep(0.005)

    def ask(self, words):
        self.questions.put(words)
        return self.answers.get(timeout=60)

    def end(self):
        self.questions.put(None)
        self.is_ending.set()
        for thread in self.threads:
            thread.join(timeout=10)
            require(not thread.is_alive(), "a thread does not end")


def await_fork():
    while True:
        try:
            with open(PAYLOAD_PATH, encoding="utf-8") as file:
                return file.read().strip()
        except FileNotFoundError:
            say(f"tick {time.monotonic_ns() // 1000}")
            time.sleep(TICK_SECONDS)


def depth(levels):
    return 0 if levels == 0 else 1 + depth(levels - 1)


def check_interpreter(names):
    """Uses parts of the interpreter that the parent has never used."""
    require(all(name == f"name {index}" for index, name in names.items()), "the dictionary changed")
    gc.collect()
    sys.setrecursionlimit(20000)
    require(depth(9000) == 9000, "recursion")
    import decimal
    import json

    require(json.loads(json.dumps({"a": [1, 2]})) == {"a": [1, 2]}, "json")
    require(decimal.Decimal("0.1") + decimal.Decimal("0.2") == decimal.Decimal("0.3"), "decimal")


def check_numpy(words):
    matrix = words[: 200 * 200].astype(numpy.float64).reshape(200, 200) / 2.0**64 + numpy.eye(200) * 100
    ones = numpy.linalg.solve(matrix, matrix.sum(axis=1))
    require(numpy.allclose(ones, 1.0), "LAPACK")
    require(numpy.zeros(16 << 20, dtype=numpy.uint8).sum() == 0, "fresh memory is not zero")


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    words = words_of((mib << 20) // 8)
    names = {index: f"name {index}" for index in range(NAMES_COUNT)}
    waiters = Waiters()
    expected = hash_of(words)

    say(f"ready {os.getpid()} {expected}")
    payload = await_fork()

    found = waiters.ask(words)
    require(found == expected, "the array changed")
    check_interpreter(names)
    check_numpy(words)
    waiters.end()
    number = int(payload.split()[0])
    say(f"result {number} {(found + number) & WORD}")
    os._exit(EXIT_RIGHT)


main()
