"""Records the commands that tests run, where FTCLUSTER_TEST_RECORD names a file.

Each test that passes adds a line of JSON for each program that it, or a fixture before it, has
started, and for each command of ftcluster that it has called in this process: the test and argv.
What did not end with exit code 0 is left out: most of it was refused.
`python -m tests.unit.documented FILE` compares them with the commands of the pages.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

Popen = subprocess.Popen[Any]


class Recorder:
    """A plugin of pytest; it appends, so that several processes and runs share a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # argv and a function that returns the exit code
        self._ran: list[tuple[list[str], Callable[[], int | None]]] = []
        self._hear_programs()
        with contextlib.suppress(ImportError):  # the engine's environment has no control node
            self._hear_main()

    def _hear_programs(self) -> None:
        start = subprocess.Popen.__init__

        def recorded(process: Popen, args: Any, *more: Any, **options: Any) -> None:
            start(process, args, *more, **options)
            argv = [args] if isinstance(args, str | bytes | os.PathLike) else args
            self._ran.append(([os.fsdecode(word) for word in argv], lambda: process.returncode))

        subprocess.Popen.__init__ = recorded

    def _hear_main(self) -> None:
        from ftcluster.cli import main

        run = main.main

        def recorded(arguments: Sequence[str] | None = None) -> int:
            code = run(arguments)
            self._ran.append((["ftcluster", *(arguments or ())], lambda: code))
            return code

        main.main = recorded

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.passed and call.when != "setup":
            ran = [argv for argv, code in self._ran if code() == 0]
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write("".join(json.dumps([item.nodeid, argv]) + "\n" for argv in ran))
        if report.failed or call.when != "setup":
            self._ran.clear()
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Record commands if this is requested."""
    if file := os.environ.get("FTCLUSTER_TEST_RECORD"):
        config.pluginmanager.register(Recorder(Path(file).resolve()))
