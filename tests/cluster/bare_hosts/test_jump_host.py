"""Many hosts behind one jump host whose sshd has the default MaxStartups and MaxSessions."""

import os
from pathlib import Path

import pytest

from ftcluster.ansible.settings import FORKS, ansible_environment, for_hosts
from tests.cluster.control import HEAD, OTHER, Control, by_jump_host
from tests.programs import CONTROL

# many names stand for the second host, each with its own address
ADDRESSES = [f"198.18.0.{100 + number}" for number in range(2 * FORKS)]
EACH = f"for one in {' '.join(ADDRESSES)}; do ip address {{}} $one/32 dev eth0 || exit; done; "
MANY = (
    f"{EACH.format('add')} echo MaxStartups 1000 > /etc/ssh/sshd_config.d/many.conf && "
    "systemctl restart ssh"
)
ONE = f"{EACH.format('del')} rm /etc/ssh/sshd_config.d/many.conf && systemctl restart ssh"
# the operator may set this for the jump host in ~/.ssh/config: all hosts share one connection
ONE_CONNECTION = "-o ControlMaster=auto -o ControlPersist=20 -o ControlPath={}/jump"


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True])
def test_all_hosts_behind_a_jump_host_are_reached_at_once(
    bare: Control, tmp_path: Path, shared: bool
) -> None:
    bed = bare.bed
    jump = by_jump_host(bed, HEAD, ONE_CONNECTION.format(tmp_path) if shared else "")
    hosts = "".join(f"host{n} ansible_host={address}\n" for n, address in enumerate(ADDRESSES))
    inventory = tmp_path / "many.ini"
    inventory.write_text(
        f"{hosts}[all:vars]\nansible_user=ops\n"
        f"ansible_ssh_private_key_file={bed.wanted.hosts}/ops_key\n"
        f'ansible_ssh_common_args="{jump} -o HostKeyAlias={OTHER}"\n'
    )
    environment = ansible_environment(for_hosts(len(ADDRESSES)))
    environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(tmp_path / "cp")
    # with other settings, connections are lost
    for name in ("ANSIBLE_SSH_RETRIES", "ANSIBLE_FORKS"):
        if tried := os.environ.get(f"TRIED_{name}"):
            environment[name] = tried
    with bare.changed({OTHER: (MANY, ONE)}):
        done = bed.run(
            CONTROL / "ansible", "-i", inventory, "all", "-m", "raw", "-a", "true",
            env=environment, cwd=tmp_path, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rc=0") == len(ADDRESSES)
