"""Tests that the pages offered to a capture have the layout that the daemon expects."""

import ctypes
import struct
import unittest

from farfork import _pages, _protocol

PAGE_BYTES = 4096


def rights(address: int) -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if start <= address < end:
                return line.split()[1]
    return ""


class Pages(unittest.TestCase):
    def test_offered_pages_are_one_code_page_and_marked_data_pages(self) -> None:
        address, length = _pages.offer_pages()
        self.assertEqual(length, _pages.PAGES_BYTES)
        self.assertEqual((rights(address), rights(address + PAGE_BYTES)), ("r-xp", "rw-p"))
        self.assertEqual(rights(address + length - 1), "rw-p")
        mark = struct.unpack("<QQQ", ctypes.string_at(address + PAGE_BYTES, 24))
        self.assertEqual(mark, (_protocol.PAGES_MAGIC, address, length))
        self.assertEqual(_pages.offer_pages(), (address, length), "the pages were made a second time")
