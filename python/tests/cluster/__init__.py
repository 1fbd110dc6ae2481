"""Tests on a running cluster of at least two nodes, as root. ``FARFORK_SOCKET`` or ``FARFORK_RUN_DIR`` selects it."""

import json
import os
import subprocess
import time
from typing import Any, Callable

import farfork

#: Longest wait for an expected event, in seconds, on a busy machine.
PATIENCE_S = 100


def command(*arguments: str, fails: bool = False) -> Any:
    """The JSON output of a ``farfork`` command."""
    line = [farfork.binary(), *arguments, "--json"]
    said = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S + 20)
    assert fails or said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def nodes() -> list[str]:
    """Names of two nodes. If there are three, this process's own node is not one of them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        alive = [node for node in command("nodes")["nodes"] if node["state"] == "alive"]
        alive.sort(key=lambda node: bool(node["is_self"]))
        if len(alive) >= 2:
            return [str(node["name"]) for node in alive[:2]]
    raise AssertionError("the tests need a cluster of two nodes")


def wait_for_no_seed() -> None:
    """Waits until the daemon has no seed of this process. ``Seed.drop`` returns before the daemon has dropped the seed."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [seed["seed"] for seed in command("seeds")["seeds"] if seed["parent_pid"] == os.getpid()]:
        assert time.monotonic() < deadline, f"these seeds are left: {left}"
        time.sleep(0.05)


class Forked:
    """A process that os.fork makes. It writes the text that a function returns, and ends."""

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
        """Waits until the process has ended. Returns the text that it wrote."""
        with open(self._reader) as said:
            text = said.read()
        os.waitpid(self.pid, 0)
        return text
