"""The attributes that tests give their elements of the JUnit file with ``record_xml_attribute``.

A worker sends the attributes with the next report of their test. The program sets them before it handles this report.
"""

from __future__ import annotations

from typing import Any, Callable

import pytest
from _pytest.junitxml import xml_key

#: The key of the attributes in the data of a report.
_FIELD = "farfork_xml_attributes"


class RecordedAttributes:
    """In a worker: attributes that were set since the last report."""

    def __init__(self, config: pytest.Config) -> None:
        self._attributes: list[tuple[str, str]] = []
        xml: Any = config.stash.get(xml_key, None)
        if xml is not None:
            xml.node_reporter = self._recording(xml.node_reporter)

    def add_to(self, data: dict[str, Any]) -> None:
        """Moves the attributes to the data of a report."""
        if self._attributes:
            data[_FIELD], self._attributes = self._attributes, []

    def _recording(self, find_reporter: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def find_recording_reporter(report: Any) -> Any:
            reporter = find_reporter(report)
            add = type(reporter).add_attribute

            def add_attribute(name: str, value: object) -> None:
                add(reporter, name, value)
                self._attributes.append((str(name), reporter.attrs[str(name)]))

            reporter.add_attribute = add_attribute
            return reporter

        return find_recording_reporter


def set_attributes(config: pytest.Config, report: Any) -> None:
    """In the program: sets the attributes that a worker has sent with a report."""
    xml: Any = config.stash.get(xml_key, None)
    for name, value in getattr(report, _FIELD, ()):
        xml.node_reporter(report).add_attribute(name, value)
