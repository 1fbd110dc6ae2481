"""Checks an executor's arguments, and encodes them as fields of fork requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Sequence

from . import _protocol

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class ExecutorOptions:
    """The checked arguments of an executor."""

    nodes: list[str]
    #: The fields of a fork request that are equal for all children.
    fork_fields: dict[str, Any]
    children_max: int
    #: Limit of a call, in seconds.
    timeout: float | None
    retries: int
    output: str


def parse_size(size: int | str) -> int:
    """Parses a size: a number of bytes, or a text such as ``"512MiB"``. Raises :class:`ValueError`."""
    if not isinstance(size, str):
        return size
    match = _SIZE.fullmatch(size)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"`{size}` is not a size: write a number of bytes, or one with KiB, MiB, GiB or TiB, such as \"512MiB\"")
    return round(float(match[1]) * unit)


def fork_fields(
    nodes: Sequence[str],
    strategy: str,
    memory: int | str | None,
    cpus: float | None,
    processes: int | None,
    net: str,
    egress: Sequence[str],
    untrusted: bool,
    user_namespace: bool,
) -> dict[str, Any]:
    """Returns the fields of a fork request that are equal for all children. Raises :class:`ValueError` or
    :class:`TypeError`.
    """
    memory_bytes = None if memory is None else parse_size(memory)
    if cpus is not None and not isinstance(cpus, (int, float)):
        raise TypeError(f"cpus must be a number of processors, such as 2 or 0.5, not {cpus!r}")
    if processes is not None and not isinstance(processes, int):
        raise TypeError(f"processes must be a whole number, not {processes!r}")
    if (memory_bytes is not None and memory_bytes < 1) or (cpus is not None and cpus < 0.001):
        raise ValueError("memory must be 1 byte or more, cpus 0.001 or more")
    if processes is not None and not 1 <= processes < 1 << 32:
        raise ValueError("processes must be 1 or more")
    if net not in _protocol.NETWORKS:
        raise ValueError(f"net must be one of {', '.join(_protocol.NETWORKS)}")
    if user_namespace and not untrusted:
        raise ValueError("user_namespace needs untrusted=True")
    flags = _protocol.FORK_OWNS_SEED
    flags |= 0 if nodes else _protocol.FORK_ANY_NODE
    flags |= _protocol.FORK_UNTRUSTED if untrusted else 0
    flags |= _protocol.FORK_USER_NAMESPACE if user_namespace else 0
    return {
        "flags": flags,
        "strategy": strategy,
        "memory_bytes_max": memory_bytes or 0,
        "cpu_millicores_max": round((cpus or 0) * 1000),
        "processes_max": processes or 0,
        "network": _protocol.NETWORKS[net],
        "egress": ",".join(split_commas(egress)),
    }


def split_commas(names: Sequence[str] | None) -> list[str]:
    """Returns the names in a sequence, or in a comma-separated text."""
    return names.split(",") if isinstance(names, str) else list(names or ())
