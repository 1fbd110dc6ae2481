"""Additions of tests and plugins to the elements of tests in the JUnit file. Tests call ``record_xml_attribute``. Plugins call
methods of ``xml.node_reporter(…)`` that add attributes and properties.

A worker sends these with the next report of their test. The program adds them before it handles this report.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Generator, Iterable

import pytest
from _pytest.junitxml import _NodeReporter, xml_key

#: The key of the additions in the data of a report.
_FIELD = "farfork_xml_additions"

#: A method of pytest's reporter of a test, and its arguments.
Addition = tuple[str, str, str]


class RecordedAdditions:
    """In a worker: additions since the last report. It is a plugin."""

    def __init__(self) -> None:
        self._additions: list[Addition] = []
        self._is_reporting = False
        for method in ("add_attribute", "add_property"):
            # The fixtures of tests are bound methods of reporters. Keep their names, which failure texts contain.
            setattr(_NodeReporter, method, self._recording(method))

    def _while_reporting(self) -> Generator[None, Any, Any]:
        """Plugins receive these calls in the program too. So their additions during a call are not sent."""
        self._is_reporting = True
        try:
            return (yield)
        finally:
            self._is_reporting = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, Any, Any]:
        return (yield from self._while_reporting())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, Any, Any]:
        return (yield from self._while_reporting())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        return (yield from self._while_reporting())

    def take(self) -> list[Addition]:
        """The additions that were not sent yet."""
        additions, self._additions = self._additions, []
        return additions

    def add_to(self, data: dict[str, Any]) -> None:
        """Moves the additions to the data of a report."""
        if additions := self.take():
            data[_FIELD] = additions

    def _recording(self, method: str) -> Callable[..., None]:
        add: Callable[..., None] = getattr(_NodeReporter, method)

        @wraps(add)
        def add_and_record(reporter: Any, name: str, value: object) -> None:
            __tracebackhide__ = True
            add(reporter, name, value)
            if not self._is_reporting:
                self._additions.append((method, str(name), str(value)))

        return add_and_record


def add_from_report(config: pytest.Config, report: Any) -> None:
    """In the program: adds what a worker has sent with a report."""
    add_all(config, report, getattr(report, _FIELD, ()))


def add_all(config: pytest.Config, report: Any, additions: Iterable[Addition]) -> None:
    """In the program: adds to the element of a report's test, or of a test that is given by its id."""
    xml: Any = config.stash.get(xml_key, None)
    for method, name, value in additions if xml is not None else ():
        getattr(xml.node_reporter(report), method)(name, value)
