"""Tests how the program prints the output of workers."""

import io
import os
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

from farfork._output import LOG, PLAIN, TAGGED, OutputPrinter


def printed(mode: str, pieces: list[tuple[int, bytes]]) -> tuple[str, str]:
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        printer = OutputPrinter("n1.c0", mode)
        for stream, data in pieces:
            printer.print(stream, data)
        printer.end_call()
    return stdout.getvalue(), stderr.getvalue()


class Printer(unittest.TestCase):
    def test_a_line_that_does_not_end_is_printed_in_parts(self) -> None:
        pieces = [(1, b"x" * (1 << 16))] * 40
        lines = printed(TAGGED, pieces)[0].splitlines()
        self.assertEqual("".join(line.removeprefix("[n1.c0] ") for line in lines), "x" * (40 << 16))
        self.assertEqual(len(lines), 3)

    def test_each_finished_line_has_the_workers_name(self) -> None:
        pieces = [(1, b"one\ntw"), (2, b"error\n"), (1, b"o\n\nrest")]
        self.assertEqual(printed(TAGGED, pieces), ("[n1.c0] one\n[n1.c0] two\n\n[n1.c0] rest\n", "[n1.c0] error\n"))

    def test_plain_output_is_unchanged_and_log_output_is_not_printed(self) -> None:
        pieces = [(1, b"one\ntw"), (1, b"o")]
        self.assertEqual(printed(PLAIN, pieces), ("one\ntwo", ""))
        self.assertEqual(printed(LOG, pieces), ("", ""))

    def test_a_progress_bar_is_tagged_after_each_carriage_return(self) -> None:
        self.assertEqual(printed(TAGGED, [(2, b"10%\r"), (2, b"20%\r")])[1], "[n1.c0] 10%\r[n1.c0] 20%\r")

    def test_a_character_in_two_pieces_is_decoded(self) -> None:
        euro = "\u20ac".encode()
        self.assertEqual(printed(TAGGED, [(1, euro[:1]), (1, euro[1:] + b"\n")])[0], "[n1.c0] \u20ac\n")

    def test_a_closed_output_stream_is_ignored(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            closed = open(os.path.join(directory, "closed"), "w")
            closed.close()
            with redirect_stdout(closed):
                OutputPrinter("n1.c0", PLAIN).print(1, b"text")
