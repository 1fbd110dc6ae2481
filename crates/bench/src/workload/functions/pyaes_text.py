"""Encrypts 22,000 characters with AES-CTR, in pure Python."""

import pyaes

TEXT = "a quick brown fox " * 1223
TEXT = TEXT[:22_000]
KEY = bytes(range(16))


def handler(payload):
    return pyaes.AESModeOfOperationCTR(KEY).encrypt(TEXT)
