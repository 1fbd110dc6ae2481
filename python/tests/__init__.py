"""``alone`` needs no daemon; ``cluster`` needs root and a running cluster of at least two nodes:

    cd python && python3 -m unittest discover -t . -s tests/alone
    cd python && python3 -m unittest discover -t . -s tests/cluster
"""

import resource
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Limits the address space of this process to its present size and ``more_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    set_memory_limit(more_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def set_memory_limit(more_bytes: int) -> None:
    """Like :func:`memory_limit`, until this process ends."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
