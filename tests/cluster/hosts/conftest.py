"""Several real hosts, set up once for all tests of this folder."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.hosts.cluster import ADDRESS, HEAD, NAMES, OTHER, THIRD, Cluster
from tests.cluster.hosts.control import Control, OpenControl
from tests.testbed import Testbed
from tests.testbed.settings import Settings

# There is one testbed at a time: what makes hosts of its own comes first, and what takes the
# cluster down again last. Everything else finds the cluster as setup left it, and leaves it so.
FIRST = ("test_debian13.py",)
LAST = ("test_teardown.py", "test_bare_hosts.py")


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


@pytest.fixture(scope="session")
def cluster(bare: Control) -> Cluster:
    """Dry run on bare hosts; a setup in which one host loses its power; a setup that mends it."""
    inventory = bare.inventory("inventory.ini", NAMES)
    before = {name: bare.snapshot(name) for name in NAMES}
    dry = bare.run("setup", inventory, "--check")
    assert dry.returncode == 0, dry.stderr
    assert re.search(r"3 hosts checked, \d\d changes to make", dry.stdout), dry.stdout
    check = bare.run("check", inventory)
    assert check.returncode == 1, check.stderr
    assert "node0, node1, node2: no stack is set up in /opt/ftcluster" in check.stdout
    assert "    run ftcluster setup\n" in check.stdout
    for name in NAMES:
        assert bare.snapshot(name) == before[name], f"--check or check changed {name}"

    setup = bare.start("setup", inventory)
    assert setup.stderr is not None
    for line in setup.stderr:
        if line.startswith("stack ..."):
            bare.bed.kill(THIRD)
            break
    out, said = setup.communicate(timeout=400)
    assert setup.returncode == 1, said
    assert out == ""
    assert "setup failed on 1 of 3 hosts" in said
    assert re.search(rf"^  {THIRD}: Make the environment: ", said, re.MULTILINE), said
    assert "see that it is on and that ssh reaches it, then run setup again" in said
    for name in (HEAD, OTHER):
        assert f"{name}: changed: Make the stack the current one" in said
    bare.bed.boot(THIRD)
    mended = bare.run("setup", inventory)
    assert mended.returncode == 0, mended.stderr
    rows = mended.stdout.splitlines()
    assert [row.split()[:3] for row in rows[1:4]] == [
        [name, name, address] for name, address in ADDRESS.items()
    ]
    assert "mpirun reached 3 hosts, the same" in rows[4]
    assert "an all-reduce over all is right" in rows[4]
    return Cluster(bare, inventory, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    order = sorted(ours, key=_turn)
    for place, item in zip([items.index(item) for item in ours], order, strict=True):
        items[place] = item
    if os.geteuid() != 0:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason="needs root, to make hosts with tests/testbed"))


def _turn(item: pytest.Item) -> int:
    name = item.path.name
    if name in LAST:
        return 3 + LAST.index(name)
    # not before the cluster is there, or nothing else would run while it is set up
    return 0 if name in FIRST else 2 if item.get_closest_marker("alone") else 1
