"""The program that `farfork demo agent` branches: an interpreter in the middle of a long search.

It looks for a short tour through random cities. Each branch continues from the same tour in its own way. Only
`read_payload` depends on farfork: it reads a file that exists in children only.
"""

import os

os.closerange(3, 256)  # descriptors inherited from the process that started the demo

import json
import math
import random
import select
import sys
import time

import numpy

PAYLOAD = "/run/farfork/payload"
POLL_SECONDS = 0.001
CITIES = 600


class Agent:
    """A tour, and the numbers of the branches that led to it."""

    def __init__(self):
        generator = numpy.random.default_rng(1)
        places = generator.random((CITIES, 2))
        self.distances = numpy.linalg.norm(places[:, None] - places[None], axis=2).tolist()
        self.tour = list(range(CITIES))
        self.branches = []

    def length(self):
        return sum(self.distances[city][self.tour[place - 1]] for place, city in enumerate(self.tour))

    def search(self, steps, temperature, seed):
        """Reverses parts of the tour, as simulated annealing does (Kirkpatrick et al., 1983)."""
        generator, tour, distances = random.Random(seed), self.tour, self.distances
        for step in range(steps):
            first, last = sorted(generator.sample(range(CITIES), 2))
            before, after = tour[first - 1], tour[(last + 1) % CITIES]
            if before == tour[last] or after == tour[first]:
                continue
            old = distances[before][tour[first]] + distances[tour[last]][after]
            new = distances[before][tour[last]] + distances[tour[first]][after]
            heat = temperature * (1 - step / steps) + 1e-9
            if new < old or generator.random() < math.exp((old - new) / heat):
                tour[first : last + 1] = reversed(tour[first : last + 1])

    def take_branch(self, order):
        """Continues the search with the branch number and the steps of an order."""
        self.branches.append(order["branch"])
        self.search(order["steps"], 0.002 * order["branch"], repr(self.branches))


def print_line(document):
    print(json.dumps(document), flush=True)


def read_payload():
    """Returns the latest order of this process; ``None`` if it is not a child of farfork."""
    try:
        with open(PAYLOAD) as payload:
            return payload.read()
    except FileNotFoundError:
        return None


def main(steps):
    began = time.perf_counter_ns()
    agent = Agent()
    agent.search(int(steps), 0.05, "warm")
    print_line({"warm_us": (time.perf_counter_ns() - began) // 1000, "length": agent.length()})
    latest = None
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        # A child that is forked again finds another order here. Check for an order before reading standard input: it is
        # at its end in a child, and without an order, the end of standard input means that the demo ends.
        if (payload := read_payload()) != latest:
            latest = payload
            agent.take_branch(json.loads(payload))
            print_line({"branches": agent.branches, "length": agent.length()})
        elif latest is None and readable and not sys.stdin.readline():
            return
        else:
            time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
