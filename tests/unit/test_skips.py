"""A missing right skips the tests that need it, and CI fails because of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import rights, skips
from tests.programs import ROOT

CONFTEST = """
from tests import rights, skips

def never(folder):
    rights._run("sh", "-c", "echo tried >> tries; echo sh: no >&2; exit 1")

rights.RIGHTS["never"] = never

def pytest_addoption(pluginmanager):
    pluginmanager.register(skips)
"""
TESTS = """
import pytest

@pytest.mark.needs("never")
@pytest.mark.parametrize("number", [1, 2])
def test_it(number):
    raise AssertionError
"""


def test_a_skip_is_counted_by_its_reason_and_fails_where_it_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--only-listed-skips"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FTCLUSTER_TEST_RUN": str(tmp_path),
             "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "skipped: 2 needs never: sh: no" in done.stdout.splitlines()
    assert "not in skips.toml: test_it.py::test_it[1]: needs never: sh: no" in done.stdout
    assert (tmp_path / "tries").read_text() == "tried\n"


@pytest.mark.parametrize("right", rights.SOME_CPUS)
@pytest.mark.parametrize("folder", ["tests/engine", "tests/engine/kernels", "tests/engine/mpi"])
def test_what_some_cpus_do_not_have_is_listed_for_any_test_of_the_engine(
    right: str, folder: str
) -> None:
    assert skips.is_listed(f"{folder}/test_new.py::test_it[1]", f"needs {right}: this CPU has no")
    assert not skips.is_listed("tests/engine/test_new.py::test_it[1]", "needs mount: denied")
