"""The pytest plugin: ``pytest --farfork N`` runs tests in children that have the session's fixtures in memory.

pytest loads this module by the entry point ``farfork``, or by ``-p farfork.pytest_plugin``. The module adds and checks the
options. ``_pytest_run`` replaces pytest's loop over the tests if ``--farfork`` is set.
"""

from __future__ import annotations

import argparse

import pytest

_NEEDS_TERMINAL = "needs a terminal, which workers of --farfork lack"
_NEEDS_ORDER = "needs the order of tests, which workers of --farfork do not keep"

#: Options of pytest that workers cannot support, by the name of their value, with the reason. An option is listed
#: before the options that it sets.
_OPTIONS_REFUSED = {
    "usepdb": ("--pdb", _NEEDS_TERMINAL),
    "trace": ("--trace", _NEEDS_TERMINAL),
    "setupplan": ("--setup-plan", _NEEDS_TERMINAL),
    "setuponly": ("--setup-only", _NEEDS_TERMINAL),
    "setupshow": ("--setup-show", _NEEDS_TERMINAL),
    "stepwise_skip": ("--stepwise-skip", _NEEDS_ORDER),
    "stepwise_reset": ("--stepwise-reset", _NEEDS_ORDER),
    "stepwise": ("--stepwise", _NEEDS_ORDER),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("farfork", "children on this machine and on others (farfork)")
    group.addoption(
        "--farfork",
        metavar="N",
        type=_parse_workers,
        default=0,
        help="run tests in N workers, which are forked after the session's fixtures were set up; "
        "`auto`: as many as this machine has processors, for each node of --farfork-nodes; 0: run them in this process",
    )
    group.addoption(
        "--farfork-nodes",
        metavar="NODES",
        default="",
        help="names of the nodes of the workers, with commas between them; default: any node",
    )
    group.addoption(
        "--farfork-dist",
        choices=("load", "file", "each"),
        default="load",
        help="load: consecutive tests of a file are sent to a worker together; file: all tests of a file are; "
        "each: each test has a child of its own (default: %(default)s)",
    )
    parser.addini(
        "farfork_worker_fixtures",
        type="args",
        default=[],
        help="names of session fixtures that workers set up for themselves, for example connections to a server",
    )


def _parse_workers(text: str) -> int | None:
    """Parses a number of workers; ``None`` for ``auto``."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of workers: write a number, or `auto`")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    workers = config.getoption("farfork")
    if workers == 0 or config.option.collectonly:
        return
    _require_no_conflict(config)
    # Imported late: a run without --farfork does not need the executor.
    from ._pytest_run import WorkerRun

    config.pluginmanager.register(WorkerRun(config, workers), "farfork-run")


def _require_no_conflict(config: pytest.Config) -> None:
    """Raises :class:`pytest.UsageError` if an option cannot be combined with ``--farfork``."""
    for name, (option, reason) in _OPTIONS_REFUSED.items():
        if config.getoption(name, False):
            raise pytest.UsageError(f"{option} {reason}; add --farfork 0")
    if config.getoption("farfork_dist") == "each" and config.getoption("capture", "") == "no":
        raise pytest.UsageError("-s has no effect with --farfork-dist each: output of its children is in their logs; drop one of them")
    uses_xdist = config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no"
    if uses_xdist or hasattr(config, "workerinput"):
        raise pytest.UsageError("pytest-xdist cannot be used with --farfork; drop -n and --dist, or add --farfork 0")
