"""Reseeds the generator of ``numpy.random``'s functions: a Mersenne Twister of 624 words and a position.

``numpy.random.seed()`` writes to 130 pages of a child, each of which must be copied, and takes 0.5 ms. This module
writes to four pages. NumPy provides the address of the state. ``_is_as_expected`` first tests another generator: its
state must have the assumed layout, and ``RandomState.__init__`` must drop a normal number that the object may have
stored.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

#: The length of the array of words. The position follows it.
_WORDS = 624
_KEY_BYTES = 4 * _WORDS


class Twister:
    """NumPy's generator, and the address of its state."""

    #: The last generator that was tested, and its twister; ``None`` if the generator has another layout.
    _known: tuple[Any, Twister | None] = (None, None)

    def __init__(self, random_state: Any, generator: Any) -> None:
        import ctypes

        self._random_state, self._generator = random_state, generator
        address = generator.ctypes.state_address
        self._key = memoryview((ctypes.c_char * _KEY_BYTES).from_address(address)).cast("B")
        self._position = memoryview((ctypes.c_int * 1).from_address(address + _KEY_BYTES)).cast("B").cast("i")

    @classmethod
    def find(cls, numpy_random: ModuleType) -> Twister | None:
        """The twister of NumPy's functions; ``None`` if the generator is of another kind, or its layout is not as expected.
        """
        # Do not import ctypes: that takes a hundred times as long as the twister saves. Normally, NumPy has imported
        # it.
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
        """Sets a random state. If NumPy's functions now use another generator, changes nothing and returns
        ``False``.
        """
        random_state, generator = self._random_state, self._generator
        if random_state._bit_generator is not generator:
            return False
        state = os.urandom(_KEY_BYTES)
        # NumPy also holds this lock while it draws.
        with generator.lock:
            self._key[:] = state
            # Marks all words as used, so that the next draw computes new ones.
            self._position[0] = _WORDS
            random_state.__init__(generator)
        return True


def _is_as_expected(twister: type[Twister], numpy_random: ModuleType, random_state: Any) -> bool:
    """Tests a twister on another generator of the same kind, which has stored a normal number. Returns whether the
    twister changed exactly the intended state.
    """
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
