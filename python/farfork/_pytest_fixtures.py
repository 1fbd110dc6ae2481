"""Session fixtures: the program sets them up once, before workers are forked, and tears them down once.

Workers have their values in memory. A worker itself sets up the other session fixtures: those with parameters, those in
the setting ``farfork_worker_fixtures``, fixtures that use one of these, and those requested by
``request.getfixturevalue``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Iterable, Iterator

import pytest
from _pytest.logging import catching_logs
from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks
from _pytest.warnings import catch_warnings_for_item

#: A test. This module uses private attributes of it: pytest has no public way to set up fixtures before the first test.
_Item = Any


class SessionFixtures:
    """The session fixtures that the program has set up. It is a plugin, so that pytest calls it for each fixture."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._is_preparing = False
        #: The definitions of the fixtures that the program has set up.
        self._prepared: list[Any] = []
        #: In a worker, the finalizers of these fixtures and of the session. They are kept, because a generator that is freed
        #: runs its `finally` clauses.
        self._inherited: list[object] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        # For pytest: tracebacks of fixtures do not show this frame.
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            if self._is_preparing:
                self._prepared.append(fixturedef)

    # ---- in the program

    def set_up(self) -> None:
        """Sets up the selected session fixtures of all tests that are not skipped, in pytest's order.

        If one raises, pytest keeps the exception, and raises it in each test that uses the fixture.
        """
        setupstate: Any = self._session._setupstate
        setupstate.setup(self._session)
        selection = _Selection(self._session)
        for item in self._session.items:
            if (names := selection.select_new(item)) and not _is_skipped(item):
                self._set_up_for(item, list(names))
                selection.mark_done(names.values())

    def _set_up_for(self, item: _Item, names: list[str]) -> None:
        stack = self._session._setupstate.stack
        # pytest refuses requests of an item that is not set up.
        stack[item] = ([], None)
        self._is_preparing = True
        try:
            with record_phase(item, "setup"):
                for name in names:
                    _request_fixture(item, name)
        finally:
            self._is_preparing = False
            finalizers, _ = stack.pop(item)
            assert not finalizers, "a session fixture has added a finalizer to a test"
            # A request stores its fixtures, so the test gets a new request for the worker.
            item._initrequest()

    def tear_down(self, item: _Item) -> pytest.TestReport | None:
        """Tears down the session fixtures, after the last test. If a finalizer raises, returns a report for `item`."""
        reraise = (KeyboardInterrupt, pytest.exit.Exception)
        setupstate = self._session._setupstate
        with record_phase(item, "teardown"):
            call = pytest.CallInfo.from_call(lambda: setupstate.teardown_exact(None), when="teardown", reraise=reraise)
        if call.excinfo is None:
            return None
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return report

    # ---- in a worker

    def inherit(self) -> None:
        """In a new worker: ensures that the program's fixtures are not torn down here, whatever a test does.

        pytest still tears down the session fixtures that this worker sets up itself, at the end of each chunk of tests.
        """
        stack = self._session._setupstate.stack
        for fixturedef in self._prepared:
            self._inherited.append(list(fixturedef._finalizers))
            fixturedef._finalizers.clear()
        finalizers, error = stack[self._session]
        self._inherited.append(finalizers)
        stack[self._session] = ([], error)


class _Selection:
    """Selects the session fixtures that the program can set up for all workers."""

    def __init__(self, session: pytest.Session) -> None:
        self._excluded: set[Any] = set()
        self._done: set[Any] = set()
        left_out = set(session.config.getini("farfork_worker_fixtures"))
        for item in session.items:
            for name in left_out.union(_parameters(item)):
                self._excluded.update(_definitions(item, name))

    def select_new(self, item: _Item) -> dict[str, Any]:
        """The session fixtures of a test that are not set up yet, by name, in pytest's order."""
        selected = {}
        for name in getattr(item, "fixturenames", ()):
            definitions = _definitions(item, name)
            definition = definitions[-1] if definitions else None
            if definition is None or definition.scope != "session" or definition in self._done:
                continue
            if self._uses_excluded(item, name, set()):
                self._excluded.add(definition)
            else:
                selected[name] = definition
        return selected

    def mark_done(self, definitions: Iterable[Any]) -> None:
        """Records that these fixtures were set up or have failed."""
        self._done.update(definitions)

    def _uses_excluded(self, item: _Item, name: str, visited: set[str]) -> bool:
        """Whether a fixture is, or needs, one that the program cannot set up."""
        visited.add(name)
        definitions = _definitions(item, name)
        if not self._excluded.isdisjoint(definitions):
            return True
        needed = {argument for definition in definitions for argument in definition.argnames} - visited
        return any(self._uses_excluded(item, argument, visited) for argument in needed)


def _definitions(item: _Item, name: str) -> Any:
    """The definitions of a fixture that a test can use. The last one overrides the others."""
    info = getattr(item, "_fixtureinfo", None)
    return (info.name2fixturedefs.get(name) or ()) if info is not None else ()


def _parameters(item: _Item) -> set[str]:
    callspec = getattr(item, "callspec", None)
    return set(callspec.params) if callspec is not None else set()


def _is_skipped(item: pytest.Item) -> bool:
    """Whether pytest will not set up the fixtures of a test, because of its marks."""
    try:
        if evaluate_skip_marks(item):
            return True
        xfailed = evaluate_xfail_marks(item)
    except (Exception, pytest.fail.Exception):
        return True  # A condition is invalid. The test reports it.
    return xfailed is not None and not xfailed.run and not item.config.option.runxfail


def _request_fixture(item: _Item, name: str) -> None:
    try:
        item._request.getfixturevalue(name)
    except (pytest.exit.Exception, KeyboardInterrupt):
        raise
    except BaseException:
        pass  # The tests that use the fixture report the exception, including SystemExit.


@contextmanager
def record_phase(item: _Item, when: str) -> Iterator[None]:
    """Records warnings, output and log messages, as pytest does in a phase of this test."""
    plugins = item.config.pluginmanager
    capture, logs = plugins.getplugin("capturemanager"), plugins.getplugin("logging-plugin")
    with ExitStack() as stack:
        if plugins.hasplugin("warnings"):
            stack.enter_context(catch_warnings_for_item(config=item.config, ihook=item.ihook, when="runtest", item=item))
        if logs is not None:
            stack.callback(lambda: item.add_report_section(when, "log", logs.report_handler.stream.getvalue().strip()))
            logs.report_handler.reset()
            stack.enter_context(catching_logs(logs.report_handler, level=logs.log_level))
        if capture is not None:
            stack.enter_context(capture.item_capture(when, item))
        yield
