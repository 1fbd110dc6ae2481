"""What the demo forks: a program with NumPy and a large array in its memory, which adds up the part that it is told.

It knows nothing of farfork but one path: a file that exists in a child only.
"""

import json
import os
import selectors
import sys
import time

os.closerange(3, 256)  # whatever the demo's own caller had open

import numpy

PAYLOAD = "/run/farfork/payload"
POLL_SECONDS = 0.001


def load(mebibytes):
    return numpy.arange(mebibytes * 2**20 // 8, dtype=numpy.int64)


def answer(array, payload):
    part = json.loads(payload)
    return json.dumps({"sum": int(array[part["first"] : part["end"]].sum())})


def parent(array):
    """Waits until it is a child, then answers."""
    print("ready", flush=True)
    while not os.path.exists(PAYLOAD):
        time.sleep(POLL_SECONDS)
    with open(PAYLOAD) as payload:
        print(answer(array, payload.read()), flush=True)


def fork(array):
    """Does the same with os.fork(), and tells when each answer came."""
    parts = sys.stdin.read().splitlines()
    began = time.perf_counter_ns()
    results = selectors.DefaultSelector()
    for index, part in enumerate(parts):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, answer(array, part).encode())
            os._exit(0)
        os.close(writer)
        results.register(reader, selectors.EVENT_READ, index)
    for _ in parts:
        key, _ = results.select()[0]
        result = json.loads(os.read(key.fd, 4096))
        after_us = (time.perf_counter_ns() - began) // 1000
        print(json.dumps({"index": key.data, "sum": result["sum"], "after_us": after_us}), flush=True)
        results.unregister(key.fd)
        os.wait()


def cold(array):
    """Answers once: what a fresh process has to do for it."""
    print(answer(array, sys.stdin.readline()), flush=True)


if __name__ == "__main__":
    {"parent": parent, "fork": fork, "cold": cold}[sys.argv[1]](load(int(sys.argv[2])))
