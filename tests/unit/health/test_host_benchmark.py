"""The measurement of a disk's speed."""

from pathlib import Path

from ftcluster_train.health.host_benchmark import measure_disk


def test_a_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    speed = measure_disk(tmp_path)
    assert speed is not None
    assert 0 < speed < 1e5
    assert list(tmp_path.iterdir()) == []
    assert measure_disk(tmp_path / "missing") is None
