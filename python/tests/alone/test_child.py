"""Tests how a child reads its payload."""

import unittest

import farfork


class Payload(unittest.TestCase):
    def child(self, payload: "bytes | None") -> farfork.Child:
        return farfork.Child("n2.c1", "n1.s1", 0, payload, -1)

    def test_a_payload_may_be_empty(self) -> None:
        for payload in (b"", b"42"):
            child = self.child(payload)
            self.assertEqual((child.has_payload, child.payload), (True, payload))

    def test_a_missing_payload_is_an_error_with_the_next_step(self) -> None:
        child = self.child(None)
        self.assertFalse(child.has_payload)
        with self.assertRaises(farfork.PayloadMissing) as caught:
            int(child.payload)
        self.assertIsInstance(caught.exception, farfork.Error)
        self.assertEqual(
            str(caught.exception),
            "child n2.c1: it was forked without a payload; give it one with `farfork fork n1.s1 --payload FILE`, "
            "or one to each child with `--payloads FILE`",
        )

    def test_the_representation_of_a_child_needs_no_payload(self) -> None:
        self.assertEqual(repr(self.child(None)), "Child('n2.c1', index=0, payload=None)")
        self.assertEqual(repr(self.child(b"42")), "Child('n2.c1', index=0, payload=b'42')")
