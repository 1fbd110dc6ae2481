"""On a running cluster of at least two nodes, which ``FARFORK_SOCKET`` or ``FARFORK_RUN_DIR`` leads to, as root."""

import json
import subprocess
from typing import Any

import farfork


def command(*arguments: str, fails: bool = False) -> Any:
    """What a command of ``farfork`` says."""
    said = subprocess.run([farfork.binary(), *arguments, "--json"], capture_output=True, text=True, timeout=60)
    assert fails or said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def nodes() -> list[str]:
    """Names of two nodes, neither of them this process's own where there are three."""
    alive = [node for node in command("nodes")["nodes"] if node["state"] == "alive"]
    alive.sort(key=lambda node: bool(node["is_self"]))
    names = [str(node["name"]) for node in alive[:2]]
    assert len(names) == 2, "the tests need a cluster of two nodes"
    return names
