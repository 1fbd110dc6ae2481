"""Tests that files that are sent with messages are read completely, and closed."""

import os
import unittest

from farfork import _connection


class Files(unittest.TestCase):
    def test_a_file_of_any_size_is_read_whole_and_closed(self) -> None:
        small = _connection._SMALL_BYTES
        for size in (0, 1, small - 1, small, 3 * small + 1):
            expected = os.urandom(size)
            fd = os.memfd_create("contents")
            os.write(fd, expected)
            os.lseek(fd, 0, os.SEEK_SET)
            self.assertEqual(_connection.read_all(fd), expected)
            self.assertRaises(OSError, os.fstat, fd)

    def test_a_file_that_cannot_be_read_is_closed(self) -> None:
        fd = os.open("/", os.O_RDONLY)
        self.assertRaises(IsADirectoryError, _connection.read_all, fd)
        self.assertRaises(OSError, os.fstat, fd)
