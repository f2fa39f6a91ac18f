"""Faults in setup, in the launch of a run and on the control node, with the test of each fault.

The tests belong to the cluster layer. `python -m tests.faults --operations` runs them, and adds a
line with each outcome to the results.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import ROOT

KIND = "operation"  # of these lines in the results


@dataclass(frozen=True)
class OperationFault:
    """A fault outside of trainings.

    Attributes:
        title: the fault.
        then: behavior that the test checks.
        test: pytest's id of the test.
    """

    title: str
    then: str
    test: str


LOCK = "tests/cluster/debian12/test_package_lock.py"
CHANGED = "tests/cluster/hosts/test_changed_hosts.py"
PREPARATION = "tests/cluster/hosts/test_preparation.py"
REPEATED = f"{PREPARATION}::test_a_command_that_was_killed_works_when_it_is_repeated"
OPERATION_FAULTS = {
    "package-lock": OperationFault(
        "another process holds dpkg's lock during `setup`",
        "`setup` names the process, waits until it ends, and continues",
        f"{LOCK}::test_setup_waits_until_the_package_lock_is_released",
    ),
    "package-lock-stays": OperationFault(
        "it holds the lock for longer than the limit",
        "`setup` fails for this host and names the process; the next `setup` succeeds",
        f"{LOCK}::test_a_host_whose_package_lock_stays_busy_fails_and_names_the_holder",
    ),
    "reinstalled": OperationFault(
        "a host was reinstalled: an empty disk and new SSH keys",
        "`train` names the host; once its keys are accepted, `setup` heals it",
        f"{CHANGED}::test_setup_heals_a_host_that_was_reinstalled",
    ),
    "leaves-inventory": OperationFault(
        "the inventory loses a host that a run uses",
        "`setup` names run and host, and changes nothing",
        f"{CHANGED}::test_a_host_with_a_run_cannot_leave_the_inventory",
    ),
    "killed-copying": OperationFault(
        "SIGKILL of `train` while it copies data",
        "`ps` reports that the run was not launched; the same command works",
        f"{REPEATED}[copies]",
    ),
    "killed-fetching": OperationFault(
        "SIGKILL of `train` while the hosts fetch the model",
        "the hosts finish; the same command works",
        f"{REPEATED}[fetches]",
    ),
    "killed-launching": OperationFault(
        "SIGKILL of `train` just before the launch",
        "`ps` shows `interrupted`; the same command works",
        f"{REPEATED}[launches]",
    ),
}


def try_faults(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the tests of some faults in one session of pytest; yield a result for each fault."""
    tests = [OPERATION_FAULTS[name].test for name in names]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        pytest = (sys.executable, "-m", "pytest", "-q", "-m", "long or not long")
        subprocess.run([*pytest, f"--junitxml={report}", *tests], cwd=ROOT, check=False)
        outcomes = read_report(report.read_text())
    for name in names:
        test = OPERATION_FAULTS[name].test.rpartition("::")[2]
        if test not in outcomes:
            print(f"{test} was not run", file=sys.stderr)
            continue
        passed, seconds = outcomes[test]
        yield {"kind": KIND, "fault": name, "passed": passed, "seconds": round(seconds, 1)}


def read_report(text: str) -> dict[str, tuple[bool, float]]:
    """Return the outcomes of a JUnit report by test: True if it passed, and its seconds.

    Skipped tests are omitted. The first test's seconds include its fixtures.
    """
    return {
        case.attrib["name"]: (len(case) == 0, float(case.attrib["time"]))
        for case in ElementTree.fromstring(text).iter("testcase")
        if case.find("skipped") is None
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the table of docs/reliability.md with the faults that were tried."""
    rows = ["| fault | what happens | tries | as described |", "|---" * 4 + "|"]
    for name, fault in OPERATION_FAULTS.items():
        tried = [line for line in results if (line["kind"], line.get("fault")) == (KIND, name)]
        if tried:
            passed = sum(line["passed"] for line in tried)
            rows.append(f"| {fault.title} | {fault.then} | {len(tried)} | {passed} |")
    return "\n".join(rows)
