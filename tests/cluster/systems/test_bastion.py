"""A cluster of seven hosts behind a bastion whose sshd has the default settings."""

from pathlib import Path

import pytest

from tests.cluster.control import HEAD, bare_hosts, by_jump_host

NAMES = tuple(f"node{number}" for number in range(8))
BEHIND = NAMES[1:]


@pytest.mark.long
def test_a_cluster_behind_a_bastion(tmp_path: Path) -> None:
    with bare_hosts("bookworm", tmp_path, NAMES) as control:
        jump = by_jump_host(control.bed, HEAD)
        inventory = control.inventory(
            "behind.ini", BEHIND, lambda _, line: f'{line} ansible_ssh_common_args="{jump}"'
        )
        done = control.run("setup", inventory)
        assert done.returncode == 0, done.stderr
        assert "7 hosts ready" in done.stdout + done.stderr
        check = control.run("check")
        assert check.returncode == 0, check.stdout + check.stderr
        # the head is not the bastion, because the hosts do not know the bastion
        assert "198.18.0.10" not in control.shell(BEHIND[0], "cat /opt/ftcluster/mesh/ssh_config")
        gone = control.run("teardown", inventory)
        assert gone.returncode == 0, gone.stderr
