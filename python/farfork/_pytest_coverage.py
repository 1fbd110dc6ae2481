"""Coverage of workers: a worker sends what coverage.py has measured, the program adds it to its own data."""

from __future__ import annotations

import sys
import warnings


def dump_measured() -> bytes | None:
    """In a worker: what was measured since the last call; ``None`` if nothing is measured."""
    if "coverage" not in sys.modules:
        return None
    from coverage import Coverage

    measuring = Coverage.current()
    if measuring is None:
        return None
    with warnings.catch_warnings():
        # About modules that no test of this worker has imported.
        warnings.simplefilter("ignore")
        data = measuring.get_data()
    measured = data.dumps()
    data.erase()
    return measured


class MeasuredCoverage:
    """In the program: what workers have measured."""

    def __init__(self) -> None:
        self._dumps: list[bytes] = []

    def add(self, measured: bytes | None) -> None:
        if measured is not None:
            self._dumps.append(measured)

    def merge(self) -> None:
        """Adds it to what the program has measured, before a plugin saves that."""
        if not self._dumps:
            return
        from coverage import Coverage, CoverageData

        measuring = Coverage.current()
        if measuring is None:
            return
        with warnings.catch_warnings():
            # About modules that the program itself has not imported.
            warnings.simplefilter("ignore")
            data = measuring.get_data()
        for dumped in self._dumps:
            part = CoverageData(no_disk=True)
            part.loads(dumped)
            data.update(part)
        self._dumps.clear()
