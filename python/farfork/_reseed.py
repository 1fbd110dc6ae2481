"""Reseeds the random number generators that would give every child the same numbers.

The kernel's generator (``os.urandom``, ``secrets``, ``uuid.uuid4``) differs in any case, and ``random`` has its own hook for
forks. Other generators have no hook, or detect a fork by a new process id; a child of farfork keeps its parent's process id.
"""

from __future__ import annotations

import os
import sys

from ._twister import Twister

_ENTROPY_BYTES = 48


class Reseeding:
    """Reseeds the generators of a checkpoint's children. The parent looks the generators up, because a lookup in a
    child would write to pages, which must be copied.
    """

    def __init__(self) -> None:
        self._numpy_random = sys.modules.get("numpy.random")
        self._twister = Twister.find(self._numpy_random) if self._numpy_random else None

    def in_child(self) -> None:
        """Seeds the generators of the libraries that this process has loaded."""
        if self._numpy_random and not (self._twister and self._twister.reseed()):
            self._numpy_random.seed()
        if ssl := sys.modules.get("ssl"):
            # Adds entropy to OpenSSL's primary generator, which makes the generator of each thread reseed itself.
            ssl.RAND_add(os.urandom(_ENTROPY_BYTES), float(_ENTROPY_BYTES))
        if tempfile := sys.modules.get("tempfile"):
            tempfile._name_sequence = None  # type: ignore[attr-defined]
