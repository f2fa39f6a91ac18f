"""The tests of the training engine, which need torch, on the stack that was set up."""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.conftest import Machine
from tests.programs import ROOT

SECONDS = 1800  # on a busy machine; five minutes of CPU time
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


PEFT = "peft==0.21.2 --hash=sha256:106ab6077ff72c54d21577f9af5970e34bac7582cb14209f7b2b511e322a4eae"

TRL = "trl==1.16.0 --hash=sha256:c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"


def trackers() -> list[str]:
    """What stack native-trackers has beside native's packages."""
    lock, more = (
        (LOCKS / f"{name}.txt").read_text().replace("\\\n", "").splitlines()
        for name in ("native", "native-trackers")
    )
    return [*(set(more) - set(lock))]


def installed(folder: Path, packages: Sequence[str]) -> str:
    """A new folder with packages, for tests that do not run without."""
    requirements = folder.with_suffix(".txt")
    requirements.write_text("\n".join(packages))
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes", "--target", folder,
        "--requirement", requirements,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=SECONDS)
    return str(folder)


def test_the_engine_that_was_installed(machine: Machine, tmp_path: Path) -> None:
    changes = {
        "FTCLUSTER_TEST_TRACKERS": installed(tmp_path / "trackers", trackers()),
        "FTCLUSTER_TEST_PEFT": installed(tmp_path / "peft", [PEFT, TRL]),
        "PATH": f"{machine.python.parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'runner'}",
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
