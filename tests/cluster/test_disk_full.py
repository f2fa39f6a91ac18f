"""Full disks, simulated by small file systems in memory."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.programs import Home

pytestmark = pytest.mark.needs("mount")


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], Path]]:
    mounted: list[Path] = []

    def mount(folder: Path, megabytes: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True
        )
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_setup_says_so_before_it_changes_anything(
    tmp_path: Path, small_disk: Callable[[Path, int], Path]
) -> None:
    prefix = small_disk(tmp_path / "disk", 100) / "ftcluster"
    done = Home(tmp_path, prefix).run("setup", "localhost", "-e", f"ftcluster_prefix={prefix}")
    assert done.returncode == 1
    said = rf"0\.1 GB are free at {prefix}, but stack native needs [2-3]\.\d GB"
    assert re.search(said, done.stderr), done.stderr
    assert "nothing was changed" in done.stderr
    assert not prefix.exists()


def test_a_disk_that_fills_up_meanwhile(
    machine: Machine, small_disk: Callable[[Path, int], Path]
) -> None:
    runs = small_disk(machine.home.prefix / "runs", 120)
    process = machine.home.start("train", "quickstart", *FEW_PAIRS, "training.max_steps=40")
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "step 10/" in line:
            (runs / "filler").write_bytes(b"x" * 80_000_000)
    code = process.wait(60)
    assert code == 1, said
    assert "is full" in said
    assert "Traceback" not in said
    assert not list(runs.glob("*/model*")), "a half-written model"
    assert machine.home.left_running() == []
