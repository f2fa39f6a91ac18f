from pathlib import Path

import pytest

from ftcluster_train.io import machine
from ftcluster_train.io.machine import counters, megahertz, one_thread_per_core


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the contents of files in /proc and /sys."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(machine, "read", lambda path: texts.get(str(path), ""))
    return texts


def test_one_thread_of_each_core(files: dict[str, str]) -> None:
    assert files == {}
    assert one_thread_per_core({3, 5}) == {3, 5}
    for thread in range(4):
        name = f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list"
        files[name] = f"{thread % 2},{thread % 2 + 2}"
    assert one_thread_per_core({0, 1, 2, 3}) == {0, 1}
    assert one_thread_per_core({2, 3}) == {2, 3}


def test_the_frequency_is_that_of_the_threads_in_use(files: dict[str, str]) -> None:
    files["/proc/cpuinfo"] = (
        "processor\t: 0\ncpu MHz\t\t: 2000.4\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.1\n\n"
        "processor\t: 2\ncpu MHz\t\t: 800.0\n"
    )
    assert megahertz({0, 1}) == 2500
    assert megahertz({7}) is None
    files["/proc/cpuinfo"] = "processor : 0\n"
    assert megahertz({0}) is None


def test_stolen_time_and_throttling(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "CPU", tmp_path)
    for number, count in enumerate(("2", "3")):
        path = tmp_path / f"cpu{number}/thermal_throttle/core_throttle_count"
        path.parent.mkdir(parents=True)
        path.touch()
        files[str(path)] = count
    files["/proc/stat"] = "cpu  10 1 20 60 3 0 1 5 4 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    found = counters()
    assert (found.stolen, found.ticks, found.throttled) == (5, 100, 5)
