"""Two hosts behind one public address, which have other addresses than the control node sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.control import ADDRESS, HEAD, OTHER, bare_hosts
from tests.testbed import Testbed

PAIR = (HEAD, OTHER)
PUBLIC = "203.0.113.7"
PORT = {HEAD: 2201, OTHER: 2202}
FORWARD = "ip daddr {public} tcp dport {port} dnat to {address}:22;"
RULES = "table ip nat {{ chain output {{ type nat hook output priority -100; {forward} }}; }}"


@contextmanager
def forwarded(bed: Testbed) -> Iterator[None]:
    """Forward ports to the hosts, as a site's router does."""
    forward = " ".join(
        FORWARD.format(public=PUBLIC, port=PORT[name], address=ADDRESS[name]) for name in PAIR
    )
    bed.run("nft", RULES.format(forward=forward), check=True)
    try:
        yield
    finally:
        bed.run("nft", "delete table ip nat", check=True)


def outside(host: str, line: str) -> str:
    key = f"ansible_ssh_extra_args='-o HostKeyAlias={ADDRESS[host]}'"
    return f"{line.replace(ADDRESS[host], PUBLIC)} ansible_port={PORT[host]} {key}"


@pytest.mark.long
def test_a_cluster_behind_nat(tmp_path: Path) -> None:
    with bare_hosts("bookworm", tmp_path, PAIR) as control, forwarded(control.bed):
        inventory = control.inventory("nat.ini", PAIR, outside)
        done = control.run("setup", inventory)
        assert done.returncode == 0, done.stderr
        assert PUBLIC not in done.stdout
        mesh = control.shell(HEAD, "cat /opt/ftcluster/mesh/ssh_config")
        assert ADDRESS[OTHER] in mesh
        assert PUBLIC not in mesh
        assert str(PORT[OTHER]) not in mesh
        planned = control.run("plan", "--commands")
        assert planned.returncode == 0, planned.stderr
        assert PUBLIC not in planned.stdout
        check = control.run("check")
        assert check.returncode == 0, check.stdout + check.stderr
        gone = control.run("teardown", inventory)
        assert gone.returncode == 0, gone.stderr
