"""Collects tests and decides which of them run in parallel."""

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

# By default, use the same few cases in each run. On demand, use more cases, which differ each time.
MORE = int(os.environ.get("FTCLUSTER_TEST_EXAMPLES", "0"))
settings.register_profile(
    "ftcluster", deadline=None, database=None, derandomize=not MORE, max_examples=MORE or 100
)
settings.load_profile("ftcluster")

# A shell makes its background jobs ignore Ctrl-C, and nohup makes them ignore the end of the
# terminal. Programs that tests start would inherit this. Signals with a handler have their default
# action in such programs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The folder that the processes of a run share; ./test gives the same folder to all processes.
if "FTCLUSTER_TEST_RUN" not in os.environ:
    os.environ["FTCLUSTER_TEST_RUN"] = tempfile.mkdtemp(prefix="ftcluster-test-")
    atexit.register(shutil.rmtree, os.environ["FTCLUSTER_TEST_RUN"])
RUN = Path(os.environ["FTCLUSTER_TEST_RUN"])

pytest_plugins = ["tests.recorded"]

# Each of several processes has a separate testbed.
if worker := os.environ.get("PYTEST_XDIST_WORKER", ""):
    os.environ["FTCLUSTER_TESTBED_NAME"] = chr(ord("a") + int(worker.removeprefix("gw")))

# These tests need torch, which only the environment of ./test engine has.
collect_ignore = [] if find_spec("torch") else ["engine"]

# Each of these folders runs in one process with everything that its fixtures set up. Other tests
# are distributed by file. The longest folders come first.
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
    """Sort by folder; in a folder, measuring tests come late and test_teardown.py last."""

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
    """Make the processes run folders and files in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            folder = _folder(nodeid)
            return folder if folder in TOGETHER else nodeid.partition("::")[0]

    # otherwise the folder with the most tests would come first
    config.option.loadscopereorder = False
    return ByFolder(config, log)


TURN = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Take turns with the other processes; consecutive tests that measure are one turn."""
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
    """Hold a lock: shared, or exclusive while no other process of the run runs a test."""
    with (RUN / "gate").open("w") as gate, (RUN / "turn").open("w") as turn:
        # a process that waits for the exclusive lock is not overtaken
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
