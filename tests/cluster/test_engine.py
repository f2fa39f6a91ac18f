"""The tests of the training engine, which need torch, on the stack that was set up."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.cluster.conftest import Machine
from tests.programs import ROOT

SECONDS = 900  # on a busy machine; two minutes of CPU time
# The stack has no pytest, so it comes from here; behind the stack's own packages, so that nothing
# else of this environment is in their place.
RUN = """
import sys
sys.path.append(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
# The project's pythonpath would put the checkout in the place of the package that was installed.
OPTIONS = ("-o", "pythonpath=", "-p", "no:cacheprovider", "--color=no")


LOCKS = ROOT / "roles/torch_stack/files"


def trackers(folder: Path) -> Path:
    """A folder with what stack native-trackers has beside native's packages."""
    lock, more = (
        (LOCKS / f"{name}.txt").read_text().replace("\\\n", "").splitlines()
        for name in ("native", "native-trackers")
    )
    requirements = folder / "trackers.txt"
    requirements.write_text("\n".join(set(more) - set(lock)))
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary=:all:", "--require-hashes", "--target", folder / "trackers",
        "--requirement", requirements,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=SECONDS)
    return folder / "trackers"


def test_the_engine_that_was_installed(machine: Machine, tmp_path: Path) -> None:
    changes = {
        "FTCLUSTER_TEST_TRACKERS": str(trackers(tmp_path)),
        "PATH": f"{machine.python.parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'runner'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FTCLUSTER_INSTALLED": str(machine.python.parent.parent.resolve()),
        "HF_HUB_OFFLINE": "1",
        # models this small only wait for a second thread, the longer the busier the machine is
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [
            str(machine.python), "-c", RUN, sysconfig.get_path("purelib"), *OPTIONS,
            "--basetemp", str(tmp_path / "engine"), str(ROOT / "tests/engine"),
        ],
        env={**machine.home.env, **changes},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, "tests/engine fails on the stack, see the output below"
    assert " passed" in done.stdout.splitlines()[-1]
