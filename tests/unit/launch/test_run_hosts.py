"""The control node reads a cluster on its own machine without Ansible."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST
from ftcluster.launch.run_hosts import RunHosts

KNOWN = {"stack": "native", "record": hashlib.sha256(b'{"a": 1}').hexdigest()}


@pytest.fixture
def here(tmp_path: Path) -> RunHosts:
    """Set up a cluster on this machine, with the record of KNOWN."""
    (tmp_path / "current").symlink_to("stacks/native-0123456789ab")
    (tmp_path / "cluster.json").write_text('{"a": 1}\n')
    return RunHosts((BUNDLED_LOCALHOST,), ("localhost",), "", str(tmp_path))


def test_the_same_stack_and_record(here: RunHosts) -> None:
    assert here.is_here_as(KNOWN)
    (Path(here.prefix) / "cluster.json").unlink()  # a cluster with a single host has no record
    assert here.is_here_as(KNOWN)


@pytest.mark.parametrize("changed", ["stack", "record", "no stack", "account", "inventory"])
def test_anything_else_is_asked_of_the_head(here: RunHosts, changed: str) -> None:
    prefix = Path(here.prefix)
    if changed in ("stack", "no stack"):
        (prefix / "current").unlink()
        if changed == "stack":
            (prefix / "current").symlink_to("stacks/icelake-0123456789ab")
    elif changed == "record":
        (prefix / "cluster.json").write_text('{"a": 2}\n')
    elif changed == "account":
        here = replace(here, rank_user="ftcluster")
    else:
        here = replace(here, inventories=(prefix / "hosts.ini",))
    assert not here.is_here_as(KNOWN)
