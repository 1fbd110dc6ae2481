"""Small suites of tests, each written into its own directory, and real runs of pytest on them."""

import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import farfork

from . import PATIENCE_S

#: Time limit of a run of pytest on a busy machine, in seconds.
RUN_S_MAX = 6 * PATIENCE_S

#: The start of each file. `in_program` returns whether it is called in the process that collected the tests.
PRELUDE = """
import os, pathlib, signal, time
import pytest
from farfork import _connection

HERE = pathlib.Path(__file__).parent

def in_program():
    return _connection.child_id is None

def note(text):
    with open(HERE / "notes", "a") as notes:
        notes.write(text + "\\n")
"""


@dataclass
class Run:
    """A run of pytest that has ended."""

    status: int
    output: str
    #: By name of the test: its outcomes in the JUnit file. Each test should have one.
    outcomes: dict[str, list[str]]
    #: By name of the test: the properties that it recorded with `record_property`.
    properties: dict[str, dict[str, str]]
    #: Of each test, its attributes in the JUnit file, without the time.
    attributes: list[dict[str, str]]
    #: Texts that `note` wrote in the program.
    notes: list[str]

    @property
    def counts(self) -> Counter[str]:
        return Counter(outcome for outcomes in self.outcomes.values() for outcome in outcomes)


class Suite:
    """Test files in a new directory. A name with a suffix is written unchanged."""

    def __init__(self, **files: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="farfork-pytest-"))
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(PRELUDE + dedent(text))

    def command(self, *arguments: str, has_cache: bool = False) -> list[str]:
        python = [sys.executable, "-m", "pytest", "-p", "farfork.pytest_plugin", "--junitxml=junit.xml"]
        return [*python, *([] if has_cache else ["-p", "no:cacheprovider"]), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        package = str(Path(farfork.__file__).parents[1])
        return {**os.environ, "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *arguments: str, has_cache: bool = False) -> Run:
        for left in ("notes", "junit.xml"):
            (self.path / left).unlink(missing_ok=True)
        ended = subprocess.run(
            self.command(*arguments, has_cache=has_cache),
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S_MAX,
        )
        outcomes, properties, attributes = self._read_junit()
        notes = self.path / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return Run(ended.returncode, ended.stdout, outcomes, properties, attributes, lines)

    def _read_junit(self) -> tuple[dict[str, list[str]], dict[str, dict[str, str]], list[dict[str, str]]]:
        outcomes: dict[str, list[str]] = {}
        properties: dict[str, dict[str, str]] = {}
        attributes: list[dict[str, str]] = []
        path = self.path / "junit.xml"
        for case in ElementTree.parse(path).iter("testcase") if path.exists() else ():
            name = f"{case.get('classname')}::{case.get('name')}"
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            outcomes.setdefault(name, []).extend(kinds or ["passed"])
            properties[name] = {str(entry.get("name")): str(entry.get("value")) for entry in case.iter("property")}
            attributes.append({name: value for name, value in case.attrib.items() if name != "time"})
        return outcomes, properties, attributes


class SuiteTest(unittest.TestCase):
    """A test whose suite is removed at its end."""

    maxDiff = None

    def suite(self, **files: str) -> Suite:
        suite = Suite(**files)
        self.addCleanup(subprocess.run, ["rm", "-rf", str(suite.path)], check=True)
        return suite

    def assert_counts(self, run: Run, status: int, **counts: int) -> None:
        self.assertEqual((run.counts, run.status), (Counter(counts), status), run.output)


def summary(run: Run) -> list[str]:
    """The counts in the last line, without the time."""
    last = [line for line in run.output.splitlines() if " in " in line and line.startswith("=")][-1]
    return sorted(last.strip("= ").partition(" in ")[0].split(", "))


def coverage_table(run: Run) -> list[str]:
    """The rows of pytest-cov's report, up to the total."""
    lines = run.output.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Name "))
    last = next(index for index, line in enumerate(lines) if line.startswith("TOTAL"))
    return lines[first : last + 1]
