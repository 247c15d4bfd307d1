"""Skips are part of the result: ``--allowed-skips FILE`` prints each one, and fails the run on one that is not listed.

A line of FILE is ``node id glob: reason glob``; ``#`` starts a comment line, which says why the skip may be. In a glob
``*`` stands for anything, ``[`` opens a set of characters. Expected failures and deselected tests are no skips.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest


class Entry(NamedTuple):
    where: str
    test: str
    reason: str


def pytest_addoption(parser):
    parser.addoption("--allowed-skips", metavar="FILE", help="fail on a skip that FILE does not list")


def pytest_configure(config):
    if name := config.getoption("--allowed-skips"):
        config.pluginmanager.register(AllowedSkips(name, read(name, config.invocation_params.dir / name)))


def read(name, path):
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise pytest.UsageError(f"--allowed-skips {name}: {error.strerror}") from None
    entries = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            test, colon, reason = line.partition(": ")
            if not colon:
                raise pytest.UsageError(f"{name}:{number}: '{line}' is not 'node id glob: reason glob'")
            entries.append(Entry(f"{name}:{number}", test, reason.strip()))
    return entries


class AllowedSkips:
    def __init__(self, name, entries):
        self.name, self.entries = name, entries
        self.used, self.listed, self.unlisted = set(), [], []

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self._see(report)

    def pytest_collectreport(self, report):
        if report.skipped:  # a whole module
            self._see(report)

    def _see(self, report):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        found = {e for e in self.entries if fnmatchcase(report.nodeid, e.test) and fnmatchcase(reason, e.reason)}
        self.used |= found
        (self.listed if found else self.unlisted).append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session, exitstatus):
        if self.unlisted and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        terminalreporter.section(f"skips, by {self.name}")
        for skip in self.listed:
            write(f"allowed: {skip}")
        for entry in self.entries:
            if entry not in self.used:
                write(f"note: {entry.where} matched no skip of this run: {entry.test}: {entry.reason}")
        for skip in self.unlisted:
            write(f"NOT ALLOWED: {skip}", red=True)
        if self.unlisted:
            write(f"error: make these tests run, or list them in {self.name} with a comment that says why", red=True)
