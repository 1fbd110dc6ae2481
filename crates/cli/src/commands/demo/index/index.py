"""The program that `farfork demo` forks: a search index of Python objects, slow to build and slow to pickle.

Only `read_payload` depends on farfork: it reads a file that exists in children only. The other modes are what the demo
compares farfork with: os.fork(), pickle over the network into a process whose imports are done, and a cold start.
"""

import os

os.closerange(3, 256)  # descriptors inherited from the process that started the demo

import functools
import gc
import itertools
import json
import pickle
import random
import re
import select
import socket
import sys
import threading
import time

import numpy

PAYLOAD = "/run/farfork/payload"
POLL_SECONDS = 0.001
WORDS_PER_DOCUMENT = 60
BEST_COUNT = 3

SUFFIXES = [
    re.compile(suffix + "$")
    for suffix in ("ational", "ation", "ings?", "fulness", "ness", "ators?", "izers?", "ers?", "ously", "ively", "s", "ed")
]


@functools.lru_cache(maxsize=None)
def stem(word):
    """Removes the endings of a word."""
    for suffix in SUFFIXES:
        shorter = suffix.sub("", word)
        if len(shorter) > 3:
            word = shorter
    return word


class Posting:
    """The positions of one word in one document."""

    __slots__ = ("document", "positions")

    def __init__(self, document, positions):
        self.document = document
        self.positions = positions

    def __reduce__(self):
        # Halves the time and the size of the pickle.
        return Posting, (self.document, self.positions)


class Index:
    """A full-text index that ranks documents by BM25."""

    def __init__(self, document_count):
        self.postings = {}
        self.lengths = numpy.zeros(document_count, dtype=numpy.int32)
        for document, text in enumerate(write_documents(document_count)):
            self.add(document, text)

    def add(self, document, text):
        words = re.findall(r"[a-z]+", text.lower())
        places = {}
        for position, word in enumerate(words):
            places.setdefault(stem(word), []).append(position)
        for word, positions in places.items():
            self.postings.setdefault(word, []).append(Posting(document, positions))
        self.lengths[document] = len(words)

    def search(self, query):
        """Returns the numbers and scores of the best documents."""
        count, mean_length = len(self.lengths), float(self.lengths.mean())
        scores = numpy.zeros(count)
        for word in query.split():
            postings = self.postings.get(word, [])
            weight = numpy.log(1 + (count - len(postings) + 0.5) / (len(postings) + 0.5))
            for posting in postings:
                frequency = len(posting.positions)
                length = 0.25 + 0.75 * self.lengths[posting.document] / mean_length
                scores[posting.document] += weight * frequency * 2.2 / (frequency + 1.2 * length)
        best = numpy.argsort(-scores, kind="stable")[:BEST_COUNT]
        return [[int(document), round(float(scores[document]), 6)] for document in best]

    def object_count(self):
        """Counts the Python objects: each posting has a list of positions."""
        return 2 * sum(map(len, self.postings.values()))

    def choose_queries(self, count):
        """Returns queries of two words each. No two queries share a word."""
        words = sorted(self.postings, key=lambda word: (-len(self.postings[word]), word))
        words = words[len(words) // 3 :]
        return [f"{words[2 * number]} {words[2 * number + 1]}" for number in range(count)]


def write_documents(count):
    """Yields documents of random words, the same in every process."""
    generator = random.Random(1)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    endings = ["", "s", "ing", "ation", "er", "ness"]
    words = ["".join(generator.choices(syllables, k=3)) + generator.choice(endings) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (rank + 20) for rank in range(len(words))))  # Zipf's law
    for _ in range(count):
        yield " ".join(generator.choices(words, cum_weights=weights, k=WORDS_PER_DOCUMENT)) + "."


def build_index(document_count):
    gc.disable()  # the collector would slow down building, and slow down pickle more than farfork
    return Index(document_count)


def print_line(document):
    print(json.dumps(document), flush=True)


def microseconds_since(began):
    return (time.perf_counter_ns() - began) // 1000


def resident_bytes():
    with open("/proc/self/statm") as counters:
        return int(counters.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_payload():
    """Returns the query of this process; ``None`` if it is not a child of farfork."""
    try:
        with open(PAYLOAD) as payload:
            return payload.read()
    except FileNotFoundError:
        return None


def run_parent(document_count, query_count):
    """Builds the index, then serves the demo's commands; in a child of farfork, answers its query."""
    began = time.perf_counter_ns()
    index = build_index(int(document_count))
    queries = index.choose_queries(int(query_count))
    print_line({"build_us": microseconds_since(began), "objects": index.object_count(), "resident_bytes": resident_bytes(), "queries": queries})
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if (query := read_payload()) is not None:
            print_line(index.search(query))
            os._exit(0)  # like the children of os.fork(): freeing the index at exit would touch all its memory
        if readable:
            command, *arguments = sys.stdin.readline().split() or ["quit"]
            if command == "quit":
                return
            {"expect": print_expected, "fork": fork_children, "pickle": send_pickle}[command](index, queries, *arguments)


def print_expected(index, queries):
    print_line([index.search(query) for query in queries])


def answer_in_children(index, queries, report):
    """Forks a child for each query, and reports each answer with its query's number as it arrives."""
    readers = {}

    def report_answers(seconds):
        for reader in select.select(list(readers), [], [], seconds)[0]:
            report(readers.pop(reader), json.loads(os.read(reader, 4096)))
            os.close(reader)
            os.wait()

    for number, query in enumerate(queries):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(index.search(query)).encode())
            os._exit(0)
        os.close(writer)
        readers[reader] = number
        report_answers(0)
    while readers:
        report_answers(None)


def fork_children(index, queries):
    """Answers the queries with os.fork() on this node."""
    began = time.perf_counter_ns()

    def report(number, answer):
        print_line({"index": number, "answer": answer, "after_us": microseconds_since(began)})

    answer_in_children(index, queries, report)


def send_pickle(index, queries, *addresses):
    """Pickles the index once, sends it to a process on each of several nodes, and prints the answers of these
    processes."""
    began = time.perf_counter_ns()
    pickled = pickle.dumps(index, pickle.HIGHEST_PROTOCOL)
    printing = threading.Lock()

    def send(number, address):
        host, port = address.rsplit(":", 1)
        share = range(number, len(queries), len(addresses))
        with socket.create_connection((host, int(port))) as connection:
            header = {"bytes": len(pickled), "queries": [queries[query] for query in share]}
            connection.sendall(json.dumps(header).encode() + b"\n")
            connection.sendall(pickled)
            for line in connection.makefile():
                answer = json.loads(line)
                with printing:
                    after_us = microseconds_since(began)
                    print_line({"index": share[answer["index"]], "answer": answer["answer"], "after_us": after_us})

    senders = [threading.Thread(target=send, args=item) for item in enumerate(addresses)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    print_line({"pickled_bytes": len(pickled)})


def run_receiver(host):
    """Receives a pickled index from the network, then answers each query with os.fork()."""
    with socket.create_server((host, 0)) as listener:
        print_line({"port": listener.getsockname()[1]})
        connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        header = json.loads(stream.readline())
        gc.disable()
        index = pickle.loads(stream.read(header["bytes"]))

        def report(number, answer):
            connection.sendall(json.dumps({"index": number, "answer": answer}).encode() + b"\n")

        answer_in_children(index, header["queries"], report)


def run_cold(document_count, query):
    """Builds the index and answers one query, as a new process must."""
    print_line(build_index(int(document_count)).search(query))


if __name__ == "__main__":
    {"parent": run_parent, "receive": run_receiver, "cold": run_cold}[sys.argv[1]](*sys.argv[2:])
