"""The records that a worker sends about the tests of a chunk. The program converts them into reports and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

from ._pytest_attributes import Addition
from ._task import safe_text


@dataclass
class WarningRecord:
    """A call of the hook ``pytest_warning_recorded``."""

    text: str
    category: tuple[str, str]
    filename: str
    lineno: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None

    @classmethod
    def of(
        cls, message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> WarningRecord:
        category = (message.category.__module__, message.category.__qualname__)
        return cls(str(message.message), category, message.filename, message.lineno, when, nodeid, location)

    def hook_arguments(self) -> dict[str, Any]:
        """The arguments of the hook, in the program."""
        message = warnings.WarningMessage(Warning(self.text), self._find_category(), self.filename, self.lineno)
        return {"warning_message": message, "when": self.when, "nodeid": self.nodeid, "location": self.location}

    def _find_category(self) -> type[Warning]:
        module, name = self.category
        found = getattr(sys.modules.get(module), name, None)
        # The program may not have imported the module of the category.
        return found if isinstance(found, type) and issubclass(found, Warning) else type(name, (Warning,), {})


@dataclass
class TestRecord:
    """The results of a test in a worker."""

    __test__ = False

    index: int
    #: Reports, in pytest's serialized form.
    reports: list[Any] = field(default_factory=list)
    #: The number of failed subtests. If there are any, pytest counts the test as failed.
    subtests_failed: int = 0
    #: Additions to the test's element of the JUnit file that no report has sent.
    additions: list[Addition] = field(default_factory=list)


@dataclass
class ExitRequest:
    """A test has called :func:`pytest.exit`, or raised :class:`KeyboardInterrupt`."""

    reason: str
    returncode: int | None
    is_interrupt: bool


@dataclass
class ChunkRecord:
    """The results of a chunk."""

    tests: list[TestRecord] = field(default_factory=list)
    warnings: list[WarningRecord] = field(default_factory=list)
    coverage: bytes | None = None
    #: Why the session must end, or false. The names are those of pytest's attributes of a session.
    shouldfail: bool | str = False
    shouldstop: bool | str = False
    exit: ExitRequest | None = None

    @property
    def ends_session(self) -> bool:
        return bool(self.shouldfail or self.shouldstop or self.exit)


#: Maximal depth of lists and dicts in a property of a test. A list may contain itself.
_DEPTH_MAX = 20


def plain_report(data: dict[str, Any]) -> dict[str, Any]:
    """A report's data, in which text replaces objects that the program may not be able to unpickle."""
    properties = data.get("user_properties", ())
    texts = [_plain_property(entry) for entry in properties]
    plain: dict[str, Any] = _plain_data({name: value for name, value in data.items() if name != "user_properties"})
    return plain if not properties else {**plain, "user_properties": texts}


def _plain_property(entry: Any) -> Any:
    try:
        name, value = entry
    except (TypeError, ValueError):
        return entry if _is_plain(entry, 0) else safe_text(lambda: str(entry))
    # JUnit files contain the whole property as text.
    return safe_text(lambda: str(name)), value if _is_plain(value, 0) else safe_text(lambda: str(value))


def _is_plain(value: Any, depth: int) -> bool:
    if depth > _DEPTH_MAX:
        return False
    if type(value) in (list, tuple):
        return all(_is_plain(item, depth + 1) for item in value)
    if type(value) is dict:
        return all(_is_plain(part, depth + 1) for item in value.items() for part in item)
    return value is None or type(value) in (bool, int, float, str, bytes)


def _plain_data(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, dict):
        return {_plain_data(key): _plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain_data(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return safe_text(lambda: str(value) if isinstance(value, str) else repr(value))
