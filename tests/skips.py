"""Skips tests that lack a right, and counts all skips by their reason."""

import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests import rights, summary

LISTED = Path(__file__).with_name("skips.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-listed-skips", action="store_true", help=f"fail on a skip not in {LISTED.name}"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if unknown := set(_needed(item)) - rights.RIGHTS.keys():
            raise pytest.UsageError(f"{item.nodeid}: tests/rights.py has no {sorted(unknown)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for right in _needed(item):
        if said := rights.missing(right):
            pytest.skip(f"needs {right}: {said}")


def _needed(item: pytest.Item) -> list[str]:
    """Return the rights that a test needs, beginning with its folder's."""
    marks = reversed([*item.iter_markers("needs")])
    return [right for mark in marks for right in mark.args]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if hasattr(terminalreporter.config, "workerinput"):
        return  # the process that collects the results has all skips
    skipped = [reason for _, reason in _skips(terminalreporter)]
    ended = [
        (report.nodeid, outcome)
        for outcome in summary.OUTCOMES
        for report in terminalreporter.stats.get(outcome, ())
    ]
    seconds = [
        (report.nodeid, report.duration)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    summary.write(Path(os.environ["FTCLUSTER_TEST_RUN"]), ended, skipped, seconds)
    for reason, count in sorted(Counter(skipped).items()):
        terminalreporter.write_line(f"skipped: {count} {reason}")
    for test, reason in _unlisted(terminalreporter):
        terminalreporter.write_line(f"not in {LISTED.name}: {test}: {reason}", red=True)


@pytest.hookimpl(tryfirst=True)  # before the terminal reports the end
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and _unlisted(reporter) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, str]]:
    """Return each skipped test or file with the reason."""
    for report in reporter.stats.get("skipped", ()):
        if isinstance(report.longrepr, tuple):
            yield report.nodeid, report.longrepr[2].removeprefix("Skipped: ")


def _unlisted(reporter: pytest.TerminalReporter) -> list[tuple[str, str]]:
    """Return the skips for which the run fails."""
    if not reporter.config.option.only_listed_skips:
        return []
    return [(test, reason) for test, reason in _skips(reporter) if not is_listed(test, reason)]


def is_listed(test: str, reason: str) -> bool:
    """Return True if CI may skip a test for this reason."""
    return any(
        fnmatchcase(reason, one["reason"])
        and any(fnmatchcase(test, pattern) for pattern in one["tests"])
        for one in tomllib.loads(LISTED.read_text(encoding="utf-8"))["skip"]
    )
