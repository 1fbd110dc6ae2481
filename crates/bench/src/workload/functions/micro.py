"""Touches each page of 16 MB once."""

SIZE = 16 * 1024 * 1024
PAGE = 4096
MEMORY = bytearray(SIZE)
for start in range(0, SIZE, PAGE):
    MEMORY[start] = (start // PAGE) % 251


def handler(payload):
    return sum(MEMORY[start] for start in range(0, SIZE, PAGE))
