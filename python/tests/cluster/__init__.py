"""Tests on a running cluster of at least two nodes, as root. ``FARFORK_SOCKET`` or ``FARFORK_RUN_DIR`` leads to it."""

import json
import os
import subprocess
import time
from typing import Any, Callable

import farfork

#: For what comes by itself, however busy the machine is.
PATIENCE_S = 100


def command(*arguments: str, fails: bool = False) -> Any:
    """What a command of ``farfork`` says."""
    line = [farfork.binary(), *arguments, "--json"]
    said = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S + 20)
    assert fails or said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def nodes() -> list[str]:
    """Names of two nodes, neither of them this process's own where there are three."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        alive = [node for node in command("nodes")["nodes"] if node["state"] == "alive"]
        alive.sort(key=lambda node: bool(node["is_self"]))
        if len(alive) >= 2:
            return [str(node["name"]) for node in alive[:2]]
    raise AssertionError("the tests need a cluster of two nodes")


class Forked:
    """A process that os.fork has made, which says a text and ends."""

    def __init__(self, say: Callable[[], str]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.write(writer, say().encode())
            finally:
                os._exit(0)
        os.close(writer)
        self._reader = reader

    def text(self) -> str:
        """What it said, when it has ended."""
        with open(self._reader) as said:
            text = said.read()
        os.waitpid(self.pid, 0)
        return text
