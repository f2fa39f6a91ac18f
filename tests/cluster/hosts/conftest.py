"""Several real hosts, set up once for all tests of this folder."""

import re
from pathlib import Path

import pytest

from tests.cluster.hosts.cluster import ADDRESS, HEAD, NAMES, OTHER, THIRD, Cluster
from tests.cluster.hosts.control import SECONDS, Control
from tests.cluster.testbeds import bare, open_control, skip_without_root, sort_tests

__all__ = ["bare", "open_control"]

# It takes the cluster down. Everything else finds it as setup left it, and leaves it so.
LAST = "test_teardown.py"


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
    out, said = setup.communicate(timeout=SECONDS)
    assert setup.returncode == 1, said
    assert out == ""
    assert "setup failed on 1 of 3 hosts" in said
    assert re.search(rf"^  {THIRD}: Create the environment: ", said, re.MULTILINE), said
    assert "check that it is on and that ssh connects to it, then run setup again" in said
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
    sort_tests(items, Path(__file__).parent, _turn)
    skip_without_root(items, Path(__file__).parent)


def _turn(item: pytest.Item) -> int:
    if item.path.name == LAST:
        return 2
    # not before the cluster is there, or nothing else would run while it is set up
    return 1 if item.get_closest_marker("alone") else 0
