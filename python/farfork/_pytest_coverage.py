"""Coverage of workers: a worker sends the measurements of coverage.py, and the program adds them to its own."""

from __future__ import annotations

import sys
import warnings


def dump_measured() -> bytes | None:
    """In a worker: the measurements since the last call; ``None`` if nothing is measured."""
    if "coverage" not in sys.modules:
        return None
    from coverage import Coverage

    measuring = Coverage.current()
    if measuring is None:
        return None
    with warnings.catch_warnings():
        # Ignore warnings about modules that no test of this worker has imported.
        warnings.simplefilter("ignore")
        data = measuring.get_data()
    measured = data.dumps()
    data.erase()
    return measured


class MeasuredCoverage:
    """In the program: the measurements of workers."""

    def __init__(self) -> None:
        self._dumps: list[bytes] = []

    def add(self, measured: bytes | None) -> None:
        if measured is not None:
            self._dumps.append(measured)

    def merge(self) -> None:
        """Adds the workers' measurements to the program's. Called before a plugin saves the program's measurements."""
        if not self._dumps:
            return
        from coverage import Coverage, CoverageData

        measuring = Coverage.current()
        if measuring is None:
            return
        with warnings.catch_warnings():
            # Ignore warnings about modules that the program itself has not imported.
            warnings.simplefilter("ignore")
            data = measuring.get_data()
        for dumped in self._dumps:
            part = CoverageData(no_disk=True)
            part.loads(dumped)
            data.update(part)
        self._dumps.clear()
