"""Records the commands that tests run, where FTCLUSTER_TEST_RECORD names a file.

Each test that passes adds a line of JSON for each program that it, or a fixture before it, has
started, and for each command of ftcluster that it has called in this process: the test and argv.
`python -m tests.unit.documented FILE` compares them with the commands of the pages.
"""

import contextlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """A plugin of pytest; it appends, so that several processes and runs share a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._started: list[list[str]] = []
        sys.addaudithook(self._hear)
        with contextlib.suppress(ImportError):  # the engine's environment has no control node
            self._hear_main()

    def _hear(self, event: str, about: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._started.append([os.fsdecode(word) for word in about[1]])

    def _hear_main(self) -> None:
        from ftcluster.cli import main

        run = main.main

        def recorded(arguments: Sequence[str] | None = None) -> int:
            self._started.append(["ftcluster", *(arguments or ())])
            return run(arguments)

        main.main = recorded

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.passed and call.when != "setup":
            with self._file.open("a", encoding="utf-8") as lines:  # a line is one write
                lines.write("".join(json.dumps([item.nodeid, a]) + "\n" for a in self._started))
        if report.failed or call.when != "setup":
            self._started.clear()
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Record, if it is asked for."""
    if file := os.environ.get("FTCLUSTER_TEST_RECORD"):
        config.pluginmanager.register(Recorder(Path(file).resolve()))
