"""Tests that NumPy's generator is reseeded only in children, in both ways, and keeps nothing of the parent's state."""

import os
import unittest
from typing import Any
from unittest import mock

import numpy

from farfork._reseed import Reseeding
from farfork._twister import Twister

random_state = numpy.random.mtrand._rand


def state() -> tuple[bytes, int, int]:
    now: Any = random_state.get_state(legacy=False)
    return now["state"]["key"].tobytes(), now["state"]["pos"], now["has_gauss"]


class NumPy(unittest.TestCase):
    def setUp(self) -> None:
        numpy.random.seed(7)
        numpy.random.standard_normal()
        self.assertEqual(state()[2], 1, "the state has no second normal number")

    def test_preparing_to_reseed_does_not_change_the_state(self) -> None:
        before = state()
        Reseeding()
        self.assertEqual(state(), before)

    def test_a_child_is_reseeded_with_random_bytes_of_the_kernel(self) -> None:
        words = os.urandom(4 * 624)
        reseeding = Reseeding()
        with mock.patch("os.urandom", lambda count: words[:count]), mock.patch("numpy.random.seed") as seed:
            reseeding.in_child()
        seed.assert_not_called()
        self.assertEqual(state(), (words, 624, 0))
        same = numpy.random.RandomState(numpy.random.MT19937())
        same.set_state(("MT19937", numpy.frombuffer(words, numpy.uint32), 624))
        self.assertEqual(list(numpy.random.standard_normal(700)), list(same.standard_normal(700)))

    def test_each_reseed_gives_another_state(self) -> None:
        reseeding = Reseeding()
        states = set()
        for _ in range(3):
            reseeding.in_child()
            states.add(state())
        self.assertEqual(len(states), 3)

    def test_a_replaced_generator_is_not_reseeded_directly(self) -> None:
        known = Twister.find(numpy.random)
        assert known is not None
        before, other = state(), numpy.random.MT19937(3)
        with mock.patch.object(known, "_random_state", numpy.random.RandomState(other)):
            self.assertFalse(known.reseed())
        self.assertEqual(state(), before)

    def test_an_unknown_numpy_is_reseeded_by_its_seed_function(self) -> None:
        with mock.patch.object(Twister, "_known", (None, None)), mock.patch("farfork._twister._KEY_BYTES", 2492):
            self.assertIsNone(Twister.find(numpy.random))
            with mock.patch("numpy.random.seed") as seed:
                Reseeding().in_child()
        seed.assert_called_once_with()
