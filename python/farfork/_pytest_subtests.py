"""Subtests of pytest 9 and later: pytest fails a test with failed subtests, by a count that it keeps in its process."""

from __future__ import annotations

from typing import Any

try:
    from _pytest.subtests import failed_subtests_key
except ImportError:
    failed_subtests_key = None  # type: ignore[assignment]


def _failed_subtests(item: Any) -> Any:
    """The counts of a session, or ``None`` if this pytest has no subtests."""
    return None if failed_subtests_key is None else item.config.stash.get(failed_subtests_key, None)


def _item_id(item: Any) -> Any:
    return getattr(item, "id", item.nodeid)


def count_failed_subtests(item: Any) -> int:
    """In a worker, after a test: the number of its failed subtests."""
    counts = _failed_subtests(item)
    return 0 if counts is None else int(counts.get(_item_id(item), 0))


def set_failed_subtests(item: Any, count: int) -> None:
    """In the program, before the reports of a test: stores the number of its failed subtests."""
    counts = _failed_subtests(item)
    if count and counts is not None:
        counts[_item_id(item)] = count
