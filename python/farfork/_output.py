"""The output of workers: a worker sends what it writes to its standard streams, and the executor prints it.

The streams of a child are files, so its log is complete, even if the worker is killed. The worker reads these files while a
call runs, and before it sends the call's outcome.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import threading
import time
from typing import Any, Callable, TextIO

from ._standard_input import use_standard_input

#: How an executor handles output: lines with the worker's name, unchanged, or only in the child's log.
TAGGED, PLAIN, LOG = "tagged", "plain", "log"
MODES = (TAGGED, PLAIN, LOG)

#: Interval between two checks for new output while a call runs, in seconds.
_INTERVAL_S = 0.1
_PIECE_BYTES = 64 << 10

#: A longer line is printed in several parts, so that the program does not collect a line that never ends.
_LINE_CHARACTERS_MAX = 1 << 20

#: Progress bars end a line with a carriage return.
_LINE_END = re.compile("[\r\n]")


class OutputSender:
    """In a worker: sends the data written to standard output (1) and standard error (2)."""

    def __init__(self, send: Callable[[int, bytes], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._files: dict[int, int] = {}
        self._offsets = {1: 0, 2: 0}
        self._works = threading.Event()
        for stream in self._offsets:
            try:
                # Open the file again: the new descriptor is readable and has its own offset.
                self._files[stream] = os.open(f"/proc/self/fd/{stream}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # The stream is closed, or belongs to another user. Its output is only in the log.
        threading.Thread(target=self._run, name="farfork-output", daemon=True).start()

    def begin_call(self) -> None:
        """From now on, sends output while it is written."""
        self._works.set()

    def end_call(self) -> None:
        """Sends the remaining output."""
        self._works.clear()
        self.send_new()

    def abandon(self) -> None:
        """In a process that ``os.fork`` made: stops sending. Replaces the lock, because a thread that held it does not
        exist in this process.
        """
        self._lock = threading.Lock()
        self._files = {}

    def _run(self) -> None:
        while True:
            self._works.wait()
            time.sleep(_INTERVAL_S)
            self.send_new()

    def send_new(self) -> None:
        with self._lock:
            for stream, fd in self._files.items():
                while piece := os.pread(fd, _PIECE_BYTES, self._offsets[stream]):
                    self._offsets[stream] += len(piece)
                    self._send(stream, piece)


def use_standard_streams() -> None:
    """In a child: makes ``sys.stdout``, ``sys.stderr`` and ``input`` use the standard streams, even if the program has
    replaced them, as a notebook does.
    """
    use_standard_input()
    for name, fd in (("stdout", 1), ("stderr", 2)):
        try:
            is_standard = getattr(sys, name).fileno() == fd
        except Exception:  # The stream is an object of the program, or missing.
            is_standard = False
        if not is_standard:
            stream = open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)
            _redirect(getattr(sys, name), stream)
            setattr(sys, name, stream)


def _redirect(replaced: Any, stream: TextIO) -> None:
    """Redirects the program's own stream to a standard one: logging handlers keep the stream with which they were made."""
    for method in ("write", "flush"):
        try:
            setattr(replaced, method, getattr(stream, method))
        except AttributeError:
            pass  # The stream is missing or built in.


class OutputPrinter:
    """In the program: prints the output of one worker."""

    def __init__(self, worker: str, mode: str) -> None:
        self._prefix = f"[{worker}] " if mode == TAGGED else ""
        self._mode = mode
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (1, 2)}
        self._unfinished = {1: "", 2: ""}

    def print(self, stream: int, data: bytes) -> None:
        """Prints data of a stream. In mode ``TAGGED``, an incomplete line is kept until it is complete."""
        if self._mode == LOG:
            return
        text = self._decoders[stream].decode(data)
        if self._prefix:
            text, rest = _finished_lines(self._unfinished[stream] + text, self._prefix)
            if len(rest) > _LINE_CHARACTERS_MAX:
                text, rest = f"{text}{self._prefix}{rest}\n", ""
            self._unfinished[stream] = rest
        _write(stream, text)

    def end_call(self) -> None:
        """Prints lines that the call has not completed."""
        for stream, rest in self._unfinished.items():
            self._unfinished[stream] = ""
            _write(stream, f"{self._prefix}{rest}\n" if rest else "")


def _finished_lines(text: str, prefix: str) -> tuple[str, str]:
    """Returns the complete lines of a text, each with the prefix, and the rest of the text."""
    lines = []
    begin = 0
    for end in _LINE_END.finditer(text):
        line = text[begin : end.end()]
        # A progress bar may begin with a carriage return, which then ends an empty line. Empty lines get no prefix.
        lines.append(prefix + line if line.strip("\r\n") else line)
        begin = end.end()
    return "".join(lines), text[begin:]


def _write(stream: int, text: str) -> None:
    target = sys.stdout if stream == 1 else sys.stderr
    if text and target is not None:
        try:
            target.write(text)
            target.flush()
        except Exception:
            pass  # The stream is closed, or an object of the program. Its error must not end a call.
