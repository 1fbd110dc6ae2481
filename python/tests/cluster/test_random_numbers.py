"""Tests that children do not share random numbers, and that libraries with their own threads work in children."""

import os
import random
import secrets
import ssl
import tempfile
import unittest
import uuid
from typing import Any

import numpy

import farfork

from . import nodes

CHILDREN = 200

# The parent uses each generator, so that there is state to share.
random.random(), numpy.random.random(), ssl.RAND_bytes(8), uuid.uuid4(), tempfile.mktemp()

matrix = numpy.random.default_rng(1).random((300, 300))
product = matrix @ matrix


def draw(_: int) -> dict[str, Any]:
    return {
        "random": random.random(),
        "random.getrandbits": random.getrandbits(64),
        "numpy": float(numpy.random.random()),
        "numpy integers": int(numpy.random.randint(1 << 62)),
        "os.urandom": os.urandom(8),
        "secrets": secrets.token_bytes(8),
        "uuid4": uuid.uuid4().hex,
        "OpenSSL": ssl.RAND_bytes(8),
        "temporary names": tempfile.mktemp(),
    }


class RandomNumbers(unittest.TestCase):
    def test_200_children_draw_different_random_numbers(self) -> None:
        with farfork.Executor(nodes()) as children:
            drawn = list(children.map(draw, range(CHILDREN)))
        for source in drawn[0]:
            self.assertEqual(len({child[source] for child in drawn}), CHILDREN, source)

    def test_blas_works_in_children_of_a_parent_that_used_it(self) -> None:
        with farfork.Executor(nodes()) as children:
            same = list(children.map(lambda _: bool(numpy.allclose(matrix @ matrix, product)), range(8)))
        self.assertEqual(same, [True] * 8)
