"""The table of faults outside of trainings: its tests exist, and it has their real outcomes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.operations import KIND, OPERATION_FAULTS, read_report, table
from tests.programs import ROOT

TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise OSError

def test_passes():
    pass

def test_fails():
    assert False

def test_leaves_something_behind(broken):
    pass

@pytest.mark.skip(reason="no hosts here")
def test_skipped():
    pass
"""


@pytest.mark.parametrize("name", OPERATION_FAULTS)
def test_each_fault_has_a_test(name: str) -> None:
    path, _, test = OPERATION_FAULTS[name].test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert test.partition("[")[0] in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def test_outcomes_are_read_from_a_report_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    pytest_argv = (sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "test_a.py")
    subprocess.run(pytest_argv, cwd=tmp_path, capture_output=True, check=False)
    outcomes = {name: passed for name, (passed, _) in read_report(report.read_text()).items()}
    assert outcomes == {
        "test_passes": True, "test_fails": False, "test_leaves_something_behind": False,
    }  # fmt: skip


def test_a_fault_that_was_not_tried_has_no_row() -> None:
    lines = [
        {"kind": KIND, "fault": "package-lock", "passed": True},
        {"kind": KIND, "fault": "package-lock", "passed": False},
        {"kind": "fault", "fault": "package-lock-stays", "passed": True},
    ]
    rows = table(lines).splitlines()
    assert len(rows) == 3
    assert rows[2].endswith("| 2 | 1 |")
