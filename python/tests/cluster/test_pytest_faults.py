"""Tests ``pytest --farfork`` with faulty tests and fixtures: no failure is lost, and no run hangs."""

import unittest

from .pytest_suite import SuiteTest, summary


class Faults(SuiteTest):
    def test_a_forked_copy_of_a_test_reports_nothing_and_runs_no_other_test(self) -> None:
        suite = self.suite(
            test_one="""
            program = os.getpid()

            def test_forks():
                if (pid := os.fork()) == 0:
                    return
                assert os.waitpid(pid, 0) == (pid, 0)
                assert False, "the assertion of the test"

            def test_next():
                if os.getpid() != program:
                    os._exit(7)
            """
        )
        for mode in ("file", "each"):
            run = suite.run("--farfork", "2", "--farfork-dist", mode)
            self.assert_counts(run, 1, failure=1, passed=1)
            self.assertIn("the assertion of the test", run.output)

    def test_a_session_fixture_that_exits_is_an_error_of_its_tests(self) -> None:
        suite = self.suite(
            test_one="""
            @pytest.fixture(scope="session")
            def configuration():
                raise SystemExit("no configuration")

            def test_needs_it(configuration): pass
            def test_passes(): pass
            """
        )
        run = suite.run("--farfork", "2")
        self.assert_counts(run, 1, error=1, passed=1)
        self.assertIn("no configuration", run.output)

    def test_tracebacks_of_fixtures_have_no_frames_of_the_plugin(self) -> None:
        suite = self.suite(
            conftest="""
            @pytest.fixture(scope="session")
            def configuration():
                raise SystemExit("no configuration")
            """,
            test_one="def test_needs_it(configuration): pass",
        )
        run = suite.run("--farfork", "1", "--tb", "short")
        self.assert_counts(run, 1, error=1)
        self.assertNotIn("_pytest_fixtures.py", run.output)

    def test_a_failed_last_test_is_reported_if_a_teardown_ends_the_session(self) -> None:
        suite = self.suite(
            test_one="""
            @pytest.fixture(scope="session")
            def ending():
                yield
                pytest.exit("the teardown ends it", returncode=0)

            def test_last(ending): assert False, "the last test"
            """
        )
        run = suite.run("--farfork", "2")
        self.assertEqual(run.counts["failure"], 1, run.output)
        self.assertIn("the last test", run.output)

    def test_a_teardown_that_raises_after_the_first_failure_is_reported(self) -> None:
        suite = self.suite(
            test_one="""
            @pytest.fixture(scope="session")
            def raising():
                yield
                note("torn down")
                raise ValueError("the teardown raises")

            def test_passes(raising): pass
            def test_fails(raising): assert False, "the first failure"
            @pytest.mark.parametrize("number", range(6))
            def test_waits(raising, number):
                time.sleep(3600)
            """
        )
        expected = suite.run("-x")
        for mode in ("load", "each"):
            run = suite.run("-x", "--farfork", "2", "--farfork-dist", mode)
            failed = "test_one::test_fails"
            self.assertEqual(run.outcomes[failed], expected.outcomes[failed], run.output)
            self.assertEqual((run.status, run.notes), (expected.status, ["torn down"]), run.output)
            for text in ("the first failure", "ValueError: the teardown raises"):
                self.assertIn(text, run.output)

    def test_tests_may_write_with_the_reporter_of_the_terminal(self) -> None:
        suite = self.suite(
            test_one="""
            def test_writes(request):
                request.config.pluginmanager.getplugin("terminalreporter").write_line("written")
                request.config.get_terminal_writer().line("written")
            """
        )
        self.assert_counts(suite.run("--farfork", "1"), 0, passed=1)

    def test_properties_have_the_same_text_as_without_workers(self) -> None:
        suite = self.suite(
            test_one="""
            from decimal import Decimal

            def test_records(record_property):
                record_property("price", Decimal("1.5"))
                endless = []
                endless.append(endless)
                record_property("endless", endless)
            """
        )
        self.assertEqual(suite.run("--farfork", "1").properties, suite.run().properties)

    def test_additions_to_the_elements_of_tests_are_as_without_workers(self) -> None:
        suite = self.suite(
            conftest="""
            from _pytest.junitxml import xml_key

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_makereport(item, call):
                reporter = item.config.stash[xml_key].node_reporter(item.nodeid)
                reporter.add_property(f"phase_{call.when}", 1)
                reporter.add_attribute(f"attribute_{call.when}", 2)
                return (yield)

            def pytest_runtest_logstart(nodeid):
                reporter = config.stash[xml_key].node_reporter(nodeid)
                reporter.add_property("started", 1)

            def pytest_configure(config):
                globals()["config"] = config

            @pytest.fixture(scope="session")
            def version(record_testsuite_property):
                record_testsuite_property("version", 3)
            """,
            test_one="""
            def test_records(record_xml_attribute, record_property, version):
                record_xml_attribute("attribute", "<1>")
                record_property("property", 1)

            def test_fails(record_xml_attribute):
                assert False, "the text of the failure"

            def test_exits(record_xml_attribute):
                record_xml_attribute("attribute", 2)
                pytest.exit("the test ends it", returncode=7)
            """,
        )
        runs, additions = [], []
        for options in ((), ("--farfork", "1", "--farfork-dist", "file")):
            run = suite.run(*options)
            self.assertEqual(run.status, 7, run.output)
            junit = (suite.path / "junit.xml").read_text()
            self.assertRegex(junit, "record_xml_attribute = &lt;bound method .*add_attribute of &lt;.*_NodeReporter")
            runs.append((run.attributes, run.properties))
            additions.append(junit.count("<property "))
        self.assertEqual((runs[0], additions[0]), (runs[1], additions[1]))

    def test_a_property_without_a_text_does_not_end_the_run(self) -> None:
        suite = self.suite(
            test_one="""
            class NoText:
                def __str__(self): raise ValueError("no text")
                __repr__ = __str__

            def test_records(record_property): record_property("price", NoText())
            def test_passes(): pass
            """
        )
        # JUnit files contain the texts of properties, so pytest itself cannot write one.
        run = suite.run("--farfork", "1", "--junitxml=")
        self.assertEqual((run.status, summary(run)), (0, ["2 passed"]), run.output)

    def test_options_that_workers_cannot_follow_are_refused(self) -> None:
        suite = self.suite(test_one="def test_passes(): pass")
        for options, words in (
            (["--stepwise"], "--stepwise needs the order of tests"),
            (["--stepwise-skip"], "--stepwise-skip needs the order of tests"),
            (["--stepwise-reset"], "--stepwise-reset needs the order of tests"),
            (["--setup-plan"], "--setup-plan needs a terminal"),
            (["--setup-only"], "--setup-only needs a terminal"),
            (["-s", "--farfork-dist", "each"], "-s has no effect"),
        ):
            # Without its cache, pytest has no option --stepwise.
            run = suite.run("--farfork", "1", *options, has_cache=True)
            self.assertEqual(run.status, 4, run.output)
            self.assertIn(words, run.output)


if __name__ == "__main__":
    unittest.main()
