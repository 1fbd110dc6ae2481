"""Tests ``pytest --farfork``: real runs of pytest on small suites, with their outcomes compared."""

import signal
import subprocess
import time
import unittest
from collections import Counter
from pathlib import Path

from . import PATIENCE_S, command, nodes
from .pytest_suite import RUN_S_MAX, Run, SuiteTest, coverage_table, summary


class SessionFixtures(SuiteTest):
    FIXTURE = """
        @pytest.fixture(scope="session")
        def table():
            note("table set up")
            yield {"rows": list(range(1000))}
            # If this ran in a child, the child would end, and the test would fail.
            in_program() or os._exit(1)
            note("table torn down")

        @pytest.fixture(scope="session", autouse=True)
        def everywhere(table):
            note("everywhere set up")
            yield
            in_program() or os._exit(1)
            note("everywhere torn down")
        """
    NOTES = ["table set up", "everywhere set up", "everywhere torn down", "table torn down"]

    def test_session_fixtures_are_set_up_and_torn_down_once_in_the_program(self) -> None:
        suite = self.suite(
            conftest=self.FIXTURE,
            test_one="""
            @pytest.mark.parametrize("row", range(20))
            def test_row(table, row):
                assert not in_program()
                assert table["rows"][row] == row
            """,
        )
        for mode in ("load", "file", "each"):
            run = suite.run("--farfork", "3", "--farfork-dist", mode)
            self.assert_counts(run, 0, passed=20)
            self.assertEqual(run.notes, self.NOTES, run.output)

    def test_a_failed_last_test_tears_down_no_session_fixture_in_its_worker(self) -> None:
        suite = self.suite(conftest=self.FIXTURE, test_one="def test_fails(table): assert table is None, 'it fails itself'")
        run = suite.run("--farfork", "1", "-x")
        self.assert_counts(run, 1, failure=1)
        self.assertIn("it fails itself", run.output)
        self.assertEqual(run.notes, self.NOTES, run.output)

    def test_the_fixtures_of_skipped_tests_are_not_set_up(self) -> None:
        suite = self.suite(
            conftest=self.FIXTURE.replace(", autouse=True", ""),
            test_one="""
            @pytest.mark.skipif("True", reason="a condition")
            def test_skipped(table): pass

            @pytest.mark.xfail(run=False)
            def test_not_run(table): pass

            def test_passes(): pass
            """,
        )
        run = suite.run("--farfork", "1")
        self.assert_counts(run, 0, passed=1, skipped=2)
        self.assertEqual(run.notes, [])

    def test_exceptions_of_session_fixtures_are_outcomes_of_their_tests(self) -> None:
        suite = self.suite(
            conftest="""
            @pytest.fixture(scope="session")
            def broken():
                note("broken set up")
                raise ConnectionError("no server at 192.0.2.1")

            @pytest.fixture(scope="session")
            def needs_broken(broken): pass

            @pytest.fixture(scope="session")
            def skipping(): pytest.skip("there is no printer")

            @pytest.fixture(scope="session")
            def breaks_at_end():
                yield
                raise OSError("the disk is full")
            """,
            test_one="""
            def test_one(broken): pass
            def test_two(needs_broken): pass
            def test_skips(skipping): pass
            def test_passes(): pass
            def test_last(breaks_at_end): pass
            """,
        )
        run = suite.run("--farfork", "2", "-rA")
        plain = suite.run("-rA")
        self.assertEqual(run.outcomes, plain.outcomes, run.output)
        self.assertEqual((run.status, run.notes), (1, ["broken set up"]))
        for text in ("no server at 192.0.2.1", "there is no printer", "the disk is full"):
            self.assertIn(text, run.output)

    def test_parametrized_and_configured_session_fixtures_run_in_workers(self) -> None:
        suite = self.suite(
            conftest="""
            @pytest.fixture(scope="session", params=["red", "blue"])
            def color(request):
                assert not in_program()
                yield request.param
                print("end of", request.param)

            @pytest.fixture(scope="session")
            def paint(color):
                assert not in_program()
                return color + " paint"

            @pytest.fixture(scope="session")
            def connection():
                assert not in_program()
                yield "connected"
                print("end of connection")

            @pytest.fixture(scope="session")
            def dynamic():
                yield "dynamic"
                assert not in_program()
                raise OSError("end of dynamic")
            """,
            test_one="""
            def test_paint(paint, color): assert paint == color + " paint"
            def test_color(color): assert color in ("red", "blue")
            """,
            test_two="""
            def test_connection(connection): assert connection == "connected"
            """,
            test_three="""
            def test_dynamic(request): assert request.getfixturevalue("dynamic") == "dynamic"
            """,
        )
        run = suite.run("--farfork", "2", "-rA", "-o", "farfork_worker_fixtures=connection")
        self.assert_counts(run, 1, passed=5, error=1)
        for text in ("end of red", "end of blue", "end of connection", "OSError: end of dynamic"):
            self.assertIn(text, run.output)


class Distribution(SuiteTest):
    FILES = {
        name: """
        seen = []

        @pytest.mark.parametrize("number", range(6))
        def test_number(number, record_property, tmp_path):
            seen.append(number)
            record_property("child", _connection.child_id)
            record_property("seen", len(seen))
            record_property("directory", tmp_path)
        """
        for name in ("test_one", "test_two")
    }

    def test_modes(self) -> None:
        suite = self.suite(**self.FILES)
        runs = {mode: suite.run("--farfork", "2", "--farfork-dist", mode) for mode in ("load", "file", "each")}
        for mode, run in runs.items():
            self.assert_counts(run, 0, passed=12)
            directories = {(entries["child"], entries["directory"]) for entries in run.properties.values()}
            self.assertEqual(len({directory for _, directory in directories}), 12, mode)
        for file in ("test_one", "test_two"):
            of_file = [entries for name, entries in runs["file"].properties.items() if name.startswith(file)]
            self.assertEqual(len({entries["child"] for entries in of_file}), 1)
            self.assertEqual([entries["seen"] for entries in of_file], list("123456"))
        each = runs["each"].properties.values()
        self.assertEqual(len({entries["child"] for entries in each}), 12)
        self.assertEqual({entries["seen"] for entries in each}, {"1"})

    def test_two_nodes(self) -> None:
        names = nodes()
        run = self.suite(**self.FILES).run("--farfork", "4", "--farfork-dist", "each", "--farfork-nodes", ",".join(names))
        self.assert_counts(run, 0, passed=12)
        self.assertIn(f"farfork: 4 workers on {', '.join(names)}", run.output)
        self.assertEqual({entries["child"].partition(".")[0] for entries in run.properties.values()}, set(names))

    def test_fixtures_of_modules_and_classes_are_torn_down_at_the_end_of_a_chunk(self) -> None:
        suite = self.suite(
            test_one="""
            @pytest.fixture(scope="module", autouse=True)
            def of_module():
                yield
                print("end of module")

            class TestClass:
                @pytest.fixture(scope="class", autouse=True)
                def of_class(self):
                    yield
                    print("end of class")

                def test_one(self): pass
                def test_two(self): pass

            def test_three(): pass
            """
        )
        for mode, count in (("file", 1), ("each", 3)):
            run = suite.run("--farfork", "1", "-rA", "--farfork-dist", mode)
            self.assert_counts(run, 0, passed=3)
            self.assertEqual(run.output.count("end of module"), count, run.output)
            self.assertEqual(run.output.count("end of class"), min(count, 2), run.output)


class Reports(SuiteTest):
    def test_all_kinds_of_tests_have_the_outcomes_of_a_run_without_workers(self) -> None:
        suite = self.suite(
            test_functions="""
            import logging, warnings

            def test_output(capsys):
                print("captured")
                assert capsys.readouterr().out == "captured\\n"

            def test_descriptors(capfd):
                os.write(1, b"written")
                assert capfd.readouterr().out == "written"

            def test_log(caplog):
                logging.getLogger("a").warning("logged")
                assert caplog.messages == ["logged"]

            def test_patch(monkeypatch):
                monkeypatch.setenv("FARFORK_TEST_VARIABLE", "1")

            def test_patch_is_undone():
                assert "FARFORK_TEST_VARIABLE" not in os.environ

            @pytest.mark.skip(reason="a reason")
            def test_skip(): pass

            @pytest.mark.xfail
            def test_expected(): assert False

            @pytest.mark.xfail(strict=True)
            def test_unexpected(): pass

            @pytest.mark.parametrize("number", [1, 2, 3])
            def test_parameters(number): assert number != 2

            def test_missing(no_such_fixture): pass

            def test_config(request):
                assert request.config.getoption("farfork_dist") in ("load", "each")

            @pytest.fixture
            def broken_end():
                yield
                raise OSError("at its end")

            def test_broken_end(broken_end): pass
            """,
            test_classes='''
            import unittest

            class Case(unittest.TestCase):
                @classmethod
                def setUpClass(cls): cls.number = 1
                def setUp(self): self.other = 2
                def test_passes(self): self.assertEqual(self.number + 1, self.other)
                def test_fails(self): self.assertEqual(self.number, self.other)
                @unittest.skip("a reason")
                def test_skips(self): pass
                @unittest.expectedFailure
                def test_expected(self): self.fail()
                def test_parts(self):
                    for part in range(3):
                        with self.subTest(part=part): self.assertNotEqual(part, 1)

            def double(number):
                """
                >>> double(2)
                4
                >>> double(3)
                7
                """
                return 2 * number
            ''',
        )
        arguments = ("--doctest-modules", "-rA", "-k", "not nothing")
        plain = suite.run(*arguments)
        self.assertGreater(plain.counts["failure"], 3, plain.output)
        for mode in ("load", "each"):
            run = suite.run(*arguments, "--farfork", "2", "--farfork-dist", mode)
            self.assertEqual(run.outcomes, plain.outcomes, run.output)
            self.assertEqual(run.status, plain.status)
            self.assertEqual(summary(run), summary(plain))

    def test_failures_have_tracebacks_output_logs_and_warnings(self) -> None:
        suite = self.suite(
            test_one="""
            import logging, warnings

            class Unknown(UserWarning): pass

            def divide(number): return 1 / number

            def test_fails():
                print("what it printed")
                os.system("echo what a command printed")
                logging.getLogger("shop").error("what it logged")
                warnings.warn("what it warned of", Unknown)
                divide(0)
            """
        )
        run = suite.run("--farfork", "1")
        self.assert_counts(run, 1, failure=1)
        for text in ("what it printed", "what a command printed", "what it logged", "Unknown: what it warned of"):
            self.assertIn(text, run.output)
        for text in ("def divide(number): return 1 / number", "ZeroDivisionError", "1 failed, 1 warning"):
            self.assertIn(text, run.output)

    def test_output_is_printed_without_capture(self) -> None:
        suite = self.suite(test_one="def test_prints(): print('a line of a test')")
        run = suite.run("--farfork", "1", "-s")
        self.assert_counts(run, 0, passed=1)
        self.assertIn("] a line of a test", run.output)


class Ends(SuiteTest):
    def test_a_test_that_kills_its_worker_fails_and_others_are_not_affected(self) -> None:
        suite = self.suite(
            test_one="""
            import ctypes

            def test_before(): pass
            def test_exits(): os._exit(7)
            def test_between(): assert False, "an assertion"
            def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
            @pytest.mark.xfail
            def test_has_a_fault(): ctypes.string_at(1)
            def test_after(): pass
            """
        )
        for mode in ("file", "each"):
            run = suite.run("--farfork", "2", "--farfork-dist", mode)
            self.assert_counts(run, 1, passed=2, failure=4)
            for text in ("exit status 7", "SIGKILL", "SIGSEGV", "see `farfork logs", "an assertion"):
                self.assertIn(text, run.output)
            self.assertIn("4 failed, 2 passed", run.output)

    def test_the_first_failure_ends_all_with_exitfirst(self) -> None:
        suite = self.suite(
            test_one="def test_fails(): assert False",
            test_two="""
            @pytest.mark.parametrize("number", range(10))
            def test_sleeps(number): time.sleep(3600)
            """,
        )
        run = suite.run("--farfork", "2", "-x")
        self.assert_counts(run, 1, failure=1)
        self.assertIn("stopping after 1 failures", run.output)

    def test_failures_are_counted_over_all_workers(self) -> None:
        text = "@pytest.mark.parametrize('n', range(9))\ndef test_fails(n): assert n < 0"
        suite = self.suite(test_a=text, test_b=text, test_c=text)
        run = suite.run("--farfork", "3", "--maxfail", "4")
        self.assert_counts(run, 1, failure=4)
        self.assertIn("stopping after 4 failures", run.output)

    def test_a_test_may_end_the_session(self) -> None:
        suite = self.suite(test_one="def test_exits(): pytest.exit('the end of it', returncode=9)\ndef test_never(): pass")
        run = suite.run("--farfork", "1", "--farfork-dist", "file")
        self.assertEqual(run.status, 9, run.output)
        self.assertIn("the end of it", run.output)
        self.assertNotIn("passed", run.output)

    def test_an_interrupt_leaves_nothing(self) -> None:
        suite = self.suite(
            conftest=SessionFixtures.FIXTURE,
            test_one="""
            @pytest.mark.parametrize("number", range(4))
            def test_sleeps(number):
                print("it", "sleeps", flush=True)
                time.sleep(3600)
            """,
        )
        before = {child["child"] for child in command("ps", "--running")["children"]}
        with open(suite.path / "output", "w+") as output:
            pytest = subprocess.Popen(
                suite.command("--farfork", "2", "-s"), cwd=suite.path, env=suite.environment, stdout=output, stderr=output
            )
            self.addCleanup(pytest.kill)
            self._wait_for_text(suite.path / "output", "it sleeps")
            pytest.send_signal(signal.SIGINT)
            status = pytest.wait(RUN_S_MAX)
        text = (suite.path / "output").read_text()
        self.assertEqual(status, 2, text)
        self.assertIn("KeyboardInterrupt", text)
        self.assertEqual((suite.path / "notes").read_text().splitlines(), SessionFixtures.NOTES, text)
        deadline = time.monotonic() + PATIENCE_S
        while left := {child["child"] for child in command("ps", "--running")["children"]} - before:
            self.assertLess(time.monotonic(), deadline, f"children are left: {left}")
            time.sleep(0.1)

    def _wait_for_text(self, path: Path, text: str) -> None:
        deadline = time.monotonic() + RUN_S_MAX
        while text not in path.read_text():
            self.assertLess(time.monotonic(), deadline, path.read_text())
            time.sleep(0.1)


class Coverage(SuiteTest):
    def test_coverage_equals_a_run_without_workers(self) -> None:
        suite = self.suite(
            shop="""
            def price(count):
                if count > 5:
                    return count * 2
                elif count < 0:
                    raise ValueError
                for _ in range(count):
                    if count == 4:
                        break
                return count

            def never():
                return 1
            """,
            conftest="""
            @pytest.fixture(scope="session")
            def shop():
                import shop
                shop.price(4)
                return shop
            """,
            test_one="@pytest.mark.parametrize('n', range(8))\ndef test_price(shop, n): shop.price(n)",
            test_two="def test_negative(shop):\n    with pytest.raises(ValueError): shop.price(-1)",
        )
        for more in ((), ("--cov-branch",), ("--cov-branch", "--cov-context=test")):
            arguments = ("--cov=.", "--cov-report=term-missing", *more)
            plain = suite.run(*arguments)
            for mode in ("load", "each"):
                run = suite.run(*arguments, "--farfork", "2", "--farfork-dist", mode)
                self.assert_counts(run, 0, passed=9)
                self.assertEqual(coverage_table(run), coverage_table(plain), run.output)
        total = float(coverage_table(plain)[-1].split()[-1].rstrip("%"))
        self.assertEqual(suite.run("--cov=.", "--cov-branch", "--farfork", "2", f"--cov-fail-under={total}").status, 0)
        self.assertEqual(suite.run("--cov=.", "--cov-branch", "--farfork", "2", f"--cov-fail-under={total + 1}").status, 1)


class Options(SuiteTest):
    def test_without_workers_nothing_changes(self) -> None:
        suite = self.suite(test_one="def test_here(): assert in_program()")
        for arguments in ((), ("--farfork", "0")):
            run = suite.run(*arguments)
            self.assert_counts(run, 0, passed=1)
            self.assertNotIn("farfork:", run.output)
        run = suite.run("--farfork", "2", "--collect-only", "-q")
        self.assertEqual((run.status, "test_one.py::test_here" in run.output), (0, True), run.output)

    def test_conflicts_are_refused_by_name(self) -> None:
        suite = self.suite(test_one="def test_here(): pass")
        conflicts = {"--pdb": ("--pdb",), "pytest-xdist": ("-n", "2"), "--setup-show": ("--setup-show",)}
        for name, arguments in conflicts.items():
            run = suite.run("--farfork", "2", *arguments)
            self.assertEqual(run.status, 4, run.output)
            self.assertIn(f"ERROR: {name}" if name.startswith("--") else name, run.output)
        self.assertEqual(suite.run("--farfork", "many").status, 4)

    def test_a_missing_daemon_is_reported(self) -> None:
        suite = self.suite(test_one="def test_here(): pass")
        missing = {**suite.environment, "FARFORK_PROGRAM_SOCKET": str(suite.path / "no.sock")}
        ended = subprocess.run(
            suite.command("--farfork", "1"), cwd=suite.path, env=missing, capture_output=True, text=True, timeout=RUN_S_MAX
        )
        self.assertEqual(ended.returncode, 4, ended.stdout + ended.stderr)
        self.assertIn("no.sock", ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
