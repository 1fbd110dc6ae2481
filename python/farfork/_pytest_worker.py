"""A worker of ``pytest --farfork``: runs chunks of tests, and records what pytest reports about them.

``_pytest_run`` sends the chunks. The session, its items and their fixtures are in the worker's memory.
"""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import pytest

from . import _connection, _task
from ._pytest_attributes import RecordedAdditions
from ._pytest_coverage import dump_measured
from ._pytest_fixtures import SessionFixtures
from ._pytest_records import ChunkRecord, ExitRequest, TestRecord, WarningRecord, plain_report
from ._pytest_subtests import count_failed_subtests


class _SilentReporter:
    """The terminal reporter without its hooks: plugins and tests look it up, and write with it."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("pytest_"):
            raise AttributeError(name)
        return getattr(self._reporter, name)


class ChunkWorker:
    """Runs chunks. It is a plugin, so that it receives reports and warnings. In the program it is idle."""

    def __init__(self, session: pytest.Session, fixtures: SessionFixtures) -> None:
        self._session = session
        self._fixtures = fixtures
        self._chunk: ChunkRecord | None = None
        #: ``None`` in the program.
        self._additions: RecordedAdditions | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._chunk is not None:
            config = self._session.config
            data = config.hook.pytest_report_to_serializable(config=config, report=report)
            plain = plain_report(data)
            if self._additions is not None:
                self._additions.add_to(plain)
            self._chunk.tests[-1].reports.append(plain)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if self._chunk is not None:
            self._chunk.warnings.append(WarningRecord.of(warning_message, when, nodeid, location))

    def run(self, indices: list[int]) -> ChunkRecord:
        """Runs tests of the session.

        pytest sees no test after the chunk, so it tears down every fixture that the chunk has set up.
        """
        additions = self._additions or self._become_worker()
        chunk = self._chunk = ChunkRecord()
        try:
            self._run_tests(chunk, indices)
        except KeyboardInterrupt:
            chunk.exit = ExitRequest("", None, is_interrupt=True)
        except pytest.exit.Exception as error:
            chunk.exit = ExitRequest(str(error.msg), error.returncode, is_interrupt=False)
        if chunk.exit is not None:
            # The test has no further report.
            chunk.tests[-1].additions = additions.take()
            self._tear_down_interrupted()
        self._chunk = None
        chunk.shouldfail, chunk.shouldstop = self._session.shouldfail, self._session.shouldstop
        chunk.coverage = dump_measured()
        return chunk

    def _run_tests(self, chunk: ChunkRecord, indices: list[int]) -> None:
        items = self._session.items
        for index, next_index in zip(indices, [*indices[1:], None]):
            # A test of an earlier chunk may have ended the session. The program then cancels this chunk.
            if self._session.shouldfail or self._session.shouldstop:
                return
            item = items[index]
            nextitem = None if next_index is None else items[next_index]
            chunk.tests.append(TestRecord(index))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            _task.end_forked_copy()
            chunk.tests[-1].subtests_failed = count_failed_subtests(item)

    def _tear_down_interrupted(self) -> None:
        """Tears down all fixtures of this worker, as pytest does at the end of an interrupted session."""
        try:
            self._session._setupstate.teardown_exact(None)
        except BaseException:
            traceback.print_exc()

    def _become_worker(self) -> RecordedAdditions:
        """Called once in each child."""
        self._additions = RecordedAdditions()
        plugins = self._session.config.pluginmanager
        plugins.register(self._additions, "farfork-additions")
        if plugins.hasplugin("terminalreporter"):
            # The program writes the reports to the terminal. The output of this process is in the child's log.
            plugins.register(_SilentReporter(plugins.unregister(name="terminalreporter")), "terminalreporter")
        self._fixtures.inherit()
        factory: Any = getattr(self._session.config, "_tmp_path_factory", None)
        if factory is not None:
            # The directory may be missing on this node. The name is short, because socket paths have at most 108 bytes.
            directory = factory.getbasetemp() / f"w{str(_connection.child_id)[-6:]}"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            factory._basetemp = directory
        return self._additions


#: The worker that children of this process become.
_worker: ChunkWorker | None = None


def install_worker(worker: ChunkWorker | None) -> None:
    """Called before workers are forked."""
    global _worker
    _worker = worker


def run_chunk(indices: list[int]) -> ChunkRecord:
    """The call that the executor sends to workers."""
    assert _worker is not None, "it was installed before this worker was forked"
    return _worker.run(indices)
