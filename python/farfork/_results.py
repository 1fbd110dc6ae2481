"""The results of :meth:`Executor.map`: from chunks of calls, one by one and in order."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, TypeVar

from . import _task
from ._future import ChildFuture

T = TypeVar("T")


def call_each(fn: Callable[..., T], chunk: list[tuple[Any, ...]]) -> list[T]:
    return [_task.run_call(fn, *arguments) for arguments in chunk]


def results_in_order(futures: list[ChildFuture[list[T]]], end: float | None) -> Iterator[T]:
    pending = futures[::-1]
    futures = []  # Drop the references, so that returned results can be freed.
    try:
        while pending:
            results = pending[-1].result(_remaining_s(end))
            pending.pop()
            yield from results
    finally:
        for future in pending:
            future.cancel()


def outcomes_in_order(
    futures: list[ChildFuture[list[bytes]]], sizes: list[int], end: float | None
) -> Iterator[Any | BaseException]:
    pending, sizes = futures[::-1], sizes[::-1]
    futures = []
    try:
        while pending:
            size = sizes.pop()
            error = pending[-1].exception(_remaining_s(end))
            results = [] if error else pending[-1].result()
            pending.pop()
            yield from (_task.value_or_error(result) for result in results)
            # If a child died, all calls of its chunk have failed.
            if error is not None:
                yield from [error] * size
    finally:
        for future in pending:
            future.cancel()


def _remaining_s(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
