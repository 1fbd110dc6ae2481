"""Reseeds the generator of ``numpy.random``'s functions: a Mersenne Twister of 624 words and a position.

``numpy.random.seed()`` writes to 130 pages of a child, each of which is copied, and takes 0.5 ms. This writes to four.
NumPy gives the address of the state. ``_is_as_expected`` first tries another generator: its state must have the assumed
layout, and ``RandomState.__init__`` must drop the normal number that the object may have in store.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

#: Where an array of words ends, and the position is.
_WORDS = 624
_KEY_BYTES = 4 * _WORDS


class Twister:
    """NumPy's own generator, and where its state is."""

    #: Of the generator that was looked at last; what has none has ``None``.
    _known: tuple[Any, Twister | None] = (None, None)

    def __init__(self, random_state: Any, generator: Any) -> None:
        import ctypes

        self._random_state, self._generator = random_state, generator
        address = generator.ctypes.state_address
        self._key = memoryview((ctypes.c_char * _KEY_BYTES).from_address(address)).cast("B")
        self._position = memoryview((ctypes.c_int * 1).from_address(address + _KEY_BYTES)).cast("B").cast("i")

    @classmethod
    def find(cls, numpy_random: ModuleType) -> Twister | None:
        """That of NumPy's functions; ``None`` where it is another, or of a NumPy that does not have it so."""
        # To import it takes a hundred times as long as it saves; NumPy has it imported.
        if "ctypes" not in sys.modules:
            return None
        try:
            random_state = numpy_random.mtrand._rand
            generator = random_state._bit_generator
        except AttributeError:
            return None
        if cls._known[0] is not generator:
            cls._known = (generator, cls(random_state, generator) if _is_as_expected(cls, numpy_random, random_state) else None)
        return cls._known[1]

    def reseed(self) -> bool:
        """Gives it a state that nobody else has. Tells whether it is still the one of NumPy's functions."""
        random_state, generator = self._random_state, self._generator
        if random_state._bit_generator is not generator:
            return False
        state = os.urandom(_KEY_BYTES)
        # As NumPy holds it while it draws.
        with generator.lock:
            self._key[:] = state
            # All words are used up.
            self._position[0] = _WORDS
            random_state.__init__(generator)
        return True


def _is_as_expected(twister: type[Twister], numpy_random: ModuleType, random_state: Any) -> bool:
    """Whether another generator of this kind, with a normal number in hand, is changed as is meant, and in nothing else."""
    kind = numpy_random.MT19937
    if type(random_state) is not numpy_random.RandomState or type(random_state._bit_generator) is not kind:
        return False
    try:
        trial = numpy_random.RandomState(kind(0))
        trial.standard_normal()
        before = trial.get_state(legacy=False)
        tried = twister(trial, trial._bit_generator)
        is_there = tried._key.tobytes() == before["state"]["key"].tobytes()
        is_there &= tried._position[0] == before["state"]["pos"] and before["has_gauss"] == 1
        if not is_there or not tried.reseed():
            return False
        after = trial.get_state(legacy=False)
        is_new = after["state"]["key"].tobytes() == tried._key.tobytes() != before["state"]["key"].tobytes()
        return bool(is_new and after["state"]["pos"] == _WORDS and after["has_gauss"] == 0)
    except Exception:
        return False
