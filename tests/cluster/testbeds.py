"""Several real hosts: fixtures of the folders whose tests have them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.hosts.cluster import NAMES
from tests.cluster.hosts.control import Control, OpenControl
from tests.testbed import Testbed
from tests.testbed.settings import Settings


@pytest.fixture(scope="session")
def open_control(tmp_path_factory: pytest.TempPathFactory) -> OpenControl:
    """Makes hosts of a suite, one set at a time, and removes them afterwards."""

    @contextmanager
    def make(suite: str, nodes: int, extra: tuple[str, ...] = ()) -> Iterator[Control]:
        settings = replace(Settings.from_environment(), suite=suite, extra=extra)
        with Testbed(settings) as bed:
            bed.down()  # what a killed run has left is in an unknown state
            bed.up(nodes)
            yield Control(bed, tmp_path_factory.mktemp(suite))

    return make


@pytest.fixture(scope="session")
def bare(open_control: OpenControl) -> Iterator[Control]:
    with open_control("bookworm", len(NAMES), ("libfaketime",)) as control:
        for number, name in enumerate(NAMES):
            # one of this machine's two cores each, as hosts of their own would have
            affinity = f"[Service]\nCPUAffinity={number % 2}\n"
            drop_in = "/etc/systemd/system/ssh.service.d"
            command = (
                f"mkdir {drop_in} && printf '{affinity}' > {drop_in}/cores.conf && "
                "systemctl daemon-reload && systemctl restart ssh"
            )
            control.bed.exec_(name, "sh", "-c", command, check=True)
        yield control


def sort_tests(items: list[pytest.Item], folder: Path, turn: Callable[[pytest.Item], int]) -> None:
    """Sort those of a folder, in the places that they have among all others."""
    ours = tests_of(items, folder)
    order = sorted(ours, key=turn)
    for place, item in zip([items.index(item) for item in ours], order, strict=True):
        items[place] = item


def skip_without_root(items: list[pytest.Item], folder: Path) -> None:
    """Skip those of a folder for who cannot make hosts."""
    if os.geteuid() != 0:
        for item in tests_of(items, folder):
            item.add_marker(pytest.mark.skip(reason="needs root, to make hosts with tests/testbed"))


def tests_of(items: list[pytest.Item], folder: Path) -> list[pytest.Item]:
    return [item for item in items if folder in item.path.parents]
