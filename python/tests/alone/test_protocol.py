"""Tests that messages are encoded and decoded as the header defines them, and other bytes are refused."""

import unittest

from farfork import _protocol


class Protocol(unittest.TestCase):
    def test_a_reply_is_read_back(self) -> None:
        message = _protocol.decode(_protocol.encode(_protocol.STARTED, 0, batch=3, index=7, child="n2.c0"))
        self.assertEqual((message.kind, dict(message)), (_protocol.STARTED, {"batch": 3, "index": 7, "child": "n2.c0"}))

    def test_absent_fields_are_zero_or_empty(self) -> None:
        message = _protocol.decode(_protocol.encode(_protocol.CHECKPOINT, 5))
        self.assertEqual(dict(message), {"ttl_ms": 0, "name": "", "pages": 0, "pages_bytes": 0, "kept_thread": 0})

    def test_a_text_that_does_not_fit_is_refused(self) -> None:
        for name in ("x" * 64, "a\0b"):
            with self.assertRaises(ValueError):
                _protocol.encode(_protocol.CHECKPOINT, 5, name=name)

    def test_other_bytes_are_refused(self) -> None:
        seed = _protocol.encode(_protocol.SEED, 0)
        for wrong in (b"", b"short", seed[:-1], seed + b"x", b"\0" + seed[1:]):
            with self.assertRaises(_protocol.ProtocolError):
                _protocol.decode(wrong)
