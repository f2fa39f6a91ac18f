"""scripts/environment, which makes the environments that users and tests work with."""

import subprocess
from pathlib import Path

import pytest

from tests.programs import ROOT

ENVIRONMENT = ROOT / "scripts/environment"


def programs(kind: str) -> Path:
    """Bring an environment up to date; return the folder of its programs."""
    done = subprocess.run([ENVIRONMENT, kind], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.mark.parametrize("kind", ["control", "dev"])
def test_an_environment_that_is_up_to_date_stays_as_it_is(kind: str) -> None:
    """The build leaves the compiled kernels in the checkout, which must not count as a change."""
    folder = programs(kind)
    files = [folder / "ftcluster", *(ROOT / "train/ftcluster_kernels").glob("*.so")]

    def versions() -> list[tuple[int, int]]:
        return [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]

    before = versions()
    assert programs(kind) == folder
    assert versions() == before


def test_a_second_process_waits_for_the_first_one() -> None:
    folder = programs("control")
    with subprocess.Popen(
        ["flock", ROOT / "build/control.lock", "sh", "-c", "echo held; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == "held\n"
        words = [ENVIRONMENT, "control"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(2)  # it needs 0.3 s if nobody holds the lock
            holder.stdin.close()
            assert second.communicate()[0].strip() == str(folder)
