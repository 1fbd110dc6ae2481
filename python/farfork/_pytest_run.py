"""The program's side of ``pytest --farfork``: sends chunks of tests to workers, and passes their reports to plugins.

::

    collection ─▶ session fixtures ─▶ checkpoint ─▶ chunks in workers ─▶ reports ─▶ finalizers

``_pytest_fixtures`` sets fixtures up and tears them down, ``_pytest_worker`` runs the chunks.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Callable, Iterable

import pytest

from ._connection import Connection
from ._errors import ChildDied, ChildNotStarted, ConnectionLost, Error
from ._executor import Executor
from ._pytest_attributes import add_all, add_from_report
from ._pytest_coverage import MeasuredCoverage
from ._pytest_fixtures import SessionFixtures
from ._pytest_records import ChunkRecord, ExitRequest
from ._pytest_subtests import set_failed_subtests
from ._pytest_worker import ChunkWorker, install_worker, run_chunk

#: Chunks per worker. Several chunks let the workers finish at about the same time.
_CHUNKS_PER_WORKER = 4

#: The exit status of a run that the cluster could not finish: pytest's status for internal errors.
_STATUS_FAILED = int(pytest.ExitCode.INTERNAL_ERROR)


class WorkerRun:
    """A session whose tests run in workers. It is a plugin of pytest."""

    def __init__(self, config: pytest.Config, workers: int | None) -> None:
        self._config = config
        self._mode: str = config.getoption("farfork_dist")
        self._nodes = [name for name in config.getoption("farfork_nodes").split(",") if name]
        # Without capture, tests print to the terminal.
        is_captured = config.getoption("capture", "no") != "no"
        self._executor = Executor(
            self._nodes,
            max_workers=workers,
            reuse_workers=self._mode != "each",
            output="log" if is_captured else "tagged",
        )
        self._workers_max = self._executor.max_workers
        self._coverage = MeasuredCoverage()
        self._fixtures: SessionFixtures | None = None
        #: The tests of each chunk that has not ended.
        self._chunks: dict[Future[ChunkRecord], list[int]] = {}
        self._unreported: set[int] = set()
        #: Reports of the last test, until the session fixtures are torn down.
        self._last_reports: list[Any] | None = None

    def pytest_report_header(self) -> str:
        workers = "worker" if self._workers_max == 1 else "workers"
        return f"farfork: {self._workers_max} {workers} on {', '.join(self._nodes) or 'any node'}"

    def pytest_sessionstart(self) -> None:
        try:
            # Fails early if there is no daemon, before collection and fixtures.
            Connection().close()
        except Error as error:
            raise pytest.UsageError(f"farfork: {error}") from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        has_errors = session.testsfailed and not session.config.option.continue_on_collection_errors
        if has_errors or not session.items:
            return None  # pytest itself reports this.
        fixtures = self._fixtures = SessionFixtures(session)
        session.config.pluginmanager.register(fixtures, "farfork-session-fixtures")
        fixtures.set_up()
        self._run_tests(session, fixtures)
        self._finish(session)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        add_from_report(self._config, report)

    def _run_tests(self, session: pytest.Session, fixtures: SessionFixtures) -> None:
        worker = ChunkWorker(session, fixtures)
        session.config.pluginmanager.register(worker, "farfork-worker")
        install_worker(worker)
        _make_base_directory(session.config)
        self._unreported = set(range(len(session.items)))
        try:
            self._submit(split_tests(session.items, self._mode, self._workers_max))
            while self._chunks:
                self._handle_ended(session)
        except BaseException:
            if self._last_reports is not None:
                self._send_reports(session, session.items[-1], self._last_reports)
            raise
        finally:
            self._end_workers()
            self._coverage.merge()

    def _end_workers(self) -> None:
        for future in self._chunks:
            future.cancel()
        self._executor.shutdown()

    def _submit(self, chunks: list[list[int]]) -> None:
        try:
            if self._mode == "each":
                # One seed serves all calls that are submitted together.
                calls: list[Callable[[], Any]] = [partial(run_chunk, chunk) for chunk in chunks]
                futures: Iterable[Future[ChunkRecord]] = self._executor._submit_calls(calls)
                self._chunks.update(zip(futures, chunks))
            else:
                for chunk in chunks:
                    self._chunks[self._executor.submit(run_chunk, chunk)] = chunk
        except Error as error:
            raise self._failure(error) from None

    def _failure(self, error: Error) -> BaseException:
        """The exception that ends the run because the cluster failed."""
        text = f"farfork: {error}; {len(self._unreported)} tests have no outcome"
        return pytest.exit.Exception(text, _STATUS_FAILED)

    def _handle_ended(self, session: pytest.Session) -> None:
        """Waits until a chunk has ended, and reports its tests."""
        ended, _ = wait(self._chunks, return_when=FIRST_COMPLETED)
        for future in sorted(ended, key=lambda future: self._chunks[future][0]):
            chunk = self._chunks.pop(future)
            try:
                record = future.result()
            except ChildDied as error:
                self._handle_death(session, chunk, error)
            except (ChildNotStarted, ConnectionLost) as error:
                raise self._failure(error) from None
            else:
                self._report_chunk(session, record)

    def _handle_death(self, session: pytest.Session, chunk: list[int], error: ChildDied) -> None:
        """Runs each test of a chunk again in its own chunk. The only test of a chunk has killed its worker."""
        if len(chunk) > 1:
            self._submit([[index] for index in chunk])
        else:
            self._report_test(session, chunk[0], _death_reports(session.items[chunk[0]], f"farfork: {error}"))

    def _report_chunk(self, session: pytest.Session, record: ChunkRecord) -> None:
        self._coverage.add(record.coverage)
        for warning in record.warnings:
            session.config.hook.pytest_warning_recorded.call_historic(kwargs=warning.hook_arguments())
        from_data = session.config.hook.pytest_report_from_serializable
        for test in record.tests:
            if test is record.tests[-1]:
                session.shouldfail = session.shouldfail or record.shouldfail
                session.shouldstop = session.shouldstop or record.shouldstop
            set_failed_subtests(session.items[test.index], test.subtests_failed)
            reports = [from_data(config=session.config, data=data) for data in test.reports]
            # Add before the last report of the test: it ends the element.
            add_all(self._config, session.items[test.index].nodeid, test.additions)
            self._report_test(session, test.index, reports, is_held=not record.ends_session)
        if record.exit is not None:
            raise _exit_exception(record.exit)

    def _report_test(self, session: pytest.Session, index: int, reports: list[Any], is_held: bool = True) -> None:
        """Reports a test. The reports of the last test are held until the session fixtures are torn down, because they
        include the errors of the finalizers.
        """
        self._unreported.discard(index)
        if is_held and index == len(session.items) - 1:
            self._last_reports = reports
        else:
            self._send_reports(session, session.items[index], reports)
            _raise_if_over(session)

    def _finish(self, session: pytest.Session) -> None:
        """Tears down the session fixtures, and reports the last test."""
        item, reports = session.items[-1], self._last_reports
        if self._unreported or reports is None:
            raise session.Interrupted(f"farfork: {len(self._unreported)} tests have no outcome")
        self._send_reports(session, item, reports, is_last=True)
        _raise_if_over(session)

    def _send_reports(self, session: pytest.Session, item: pytest.Item, reports: list[Any], is_last: bool = False) -> None:
        """Reports a test as pytest does. After the last test, or if this test ends the session, tears down the session
        fixtures, and reports an error of their finalizers with the test.
        """
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        has_passed = bool(reports) and reports[-1].when == "teardown" and reports[-1].passed
        first, teardown = (reports[:-1], reports[-1:]) if has_passed else (reports, [])
        for report in first:
            item.ihook.pytest_runtest_logreport(report=report)
        try:
            if is_last or session.shouldfail or session.shouldstop:
                assert self._fixtures is not None
                # Workers may still use the fixtures.
                self._end_workers()
                if error := self._fixtures.tear_down(item):
                    teardown = [error]
        finally:
            for report in teardown:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def split_tests(items: list[pytest.Item], mode: str, workers: int) -> list[list[int]]:
    """The tests of each chunk, as indices of ``items``. All tests of a chunk are in one file."""
    if mode == "each":
        return [[index] for index in range(len(items))]
    if mode == "file":
        files: dict[Any, list[int]] = {}
        for index, item in enumerate(items):
            files.setdefault(item.path, []).append(index)
        return list(files.values())
    chunk_max = max(1, -(-len(items) // (_CHUNKS_PER_WORKER * workers)))
    chunks: list[list[int]] = []
    for index, item in enumerate(items):
        if not chunks or len(chunks[-1]) == chunk_max or items[index - 1].path != item.path:
            chunks.append([])
        chunks[-1].append(index)
    return chunks


def _make_base_directory(config: pytest.Config) -> None:
    """Creates the base of temporary directories in the program. With ``--basetemp``, a worker would otherwise remove and
    create this directory while other workers use it.
    """
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory.getbasetemp()


def _death_reports(item: pytest.Item, text: str) -> list[pytest.TestReport]:
    """The reports of a test that has killed its worker: a failure, even for a test that is marked ``xfail``."""
    died = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), when="call")
    over: pytest.CallInfo[None] = pytest.CallInfo.from_call(lambda: None, when="teardown")
    return [pytest.TestReport.from_item_and_call(item, call) for call in (died, over)]


def _raise_if_over(session: pytest.Session) -> None:
    """Ends the session if it must end, as pytest does after each test."""
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _exit_exception(request: ExitRequest) -> BaseException:
    return KeyboardInterrupt() if request.is_interrupt else pytest.exit.Exception(request.reason, request.returncode)
