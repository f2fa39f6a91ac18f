"""Collection of tests, and which of them run in parallel."""

import atexit
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import skips

# The same cases in each run, few enough for CI; on demand more, and others each time.
MORE = int(os.environ.get("FTCLUSTER_TEST_EXAMPLES", "0"))
settings.register_profile(
    "ftcluster", deadline=None, database=None, derandomize=not MORE, max_examples=MORE or 100
)
settings.load_profile("ftcluster")

# A shell has its jobs in the background ignore Ctrl-C, nohup the end of the terminal, and the
# programs of tests would inherit that. What is handled is back to its default in a program.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# What the processes of a run share; ./test gives one folder to all that it starts.
if "FTCLUSTER_TEST_RUN" not in os.environ:
    os.environ["FTCLUSTER_TEST_RUN"] = tempfile.mkdtemp(prefix="ftcluster-test-")
    atexit.register(shutil.rmtree, os.environ["FTCLUSTER_TEST_RUN"])
RUN = Path(os.environ["FTCLUSTER_TEST_RUN"])

pytest_plugins = ["tests.recorded"]

# Each of several processes has a testbed of its own.
if worker := os.environ.get("PYTEST_XDIST_WORKER", ""):
    os.environ["FTCLUSTER_TESTBED_NAME"] = chr(ord("a") + int(worker.removeprefix("gw")))

# They need torch, which only the environment has that ./test engine makes.
collect_ignore = [] if find_spec("torch") else ["engine"]

# Each of these folders goes to one of several processes, with all that its fixtures set up; other
# tests go file by file. What takes longest comes first.
TOGETHER = (
    "tests/cluster/hosts",
    "tests/cluster",
    "tests/cluster/debian12",
    "tests/cluster/ordinary_user",
    "tests/cluster/bare_hosts",
    "tests",
    "tests/roles",
)


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(skips)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by folder. In a folder, tests that measure come late, and test_teardown.py last."""

    def turn(item: pytest.Item) -> tuple[int, bool, bool]:
        folder = _folder(item.nodeid)
        place = TOGETHER.index(folder) if folder in TOGETHER else len(TOGETHER)
        teardown = item.path.name == "test_teardown.py"
        return place, teardown, item.get_closest_marker("alone") is not None

    items.sort(key=turn)


def _folder(nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have the processes take folders and files in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            folder = _folder(nodeid)
            return folder if folder in TOGETHER else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # it would take what has the most tests first
    return ByFolder(config, log)


TURN = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Take turns with the other processes; tests in a row that measure are one turn."""
    alone = item.get_closest_marker("alone") is not None
    stash = item.config.stash
    if TURN not in stash:
        stash[TURN] = ExitStack()
        stash[TURN].enter_context(_turn(alone))
    try:
        return (yield)
    finally:
        if not (alone and nextitem and nextitem.get_closest_marker("alone")):
            stash[TURN].close()
            del stash[TURN]


@contextmanager
def _turn(alone: bool) -> Iterator[None]:
    """Hold a lock: a shared one, or alone, while no other process of the run runs a test."""
    with (RUN / "gate").open("w") as gate, (RUN / "turn").open("w") as turn:
        fcntl.flock(gate, fcntl.LOCK_EX)  # whoever waits to be alone is not overtaken
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
