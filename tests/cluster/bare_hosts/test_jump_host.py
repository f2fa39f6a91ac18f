"""Many hosts behind one jump host, whose sshd has its defaults: MaxStartups 10:30:100."""

import os
import re
from pathlib import Path

import pytest

from ftcluster.ansible.settings import FORKS, ansible_environment, for_hosts
from tests.cluster.control import ADDRESS, HEAD, OTHER, Control
from tests.programs import CONTROL

# the second host stands for all of them, with an address each
ADDRESSES = [f"198.18.0.{210 + number}" for number in range(FORKS)]
EACH = f"for one in {' '.join(ADDRESSES)}; do ip address {{}} $one/32 dev eth0 || exit; done; "
MANY = (
    f"{EACH.format('add')} echo MaxStartups 1000 > /etc/ssh/sshd_config.d/many.conf && "
    "systemctl restart ssh"
)
ONE = f"{EACH.format('del')} rm /etc/ssh/sshd_config.d/many.conf && systemctl restart ssh"


@pytest.mark.long
def test_all_hosts_behind_a_jump_host_are_reached_at_once(bare: Control, tmp_path: Path) -> None:
    bed = bare.bed
    [options] = re.findall(r"ansible_ssh_common_args=(.*)", bed.inventory())
    login = f"-i {bed.wanted.hosts}/ops_key {options}"
    jump = f"{options} -o ProxyCommand='ssh {login} -W %h:%p ops@{ADDRESS[HEAD]}'"
    hosts = "".join(f"host{n} ansible_host={address}\n" for n, address in enumerate(ADDRESSES))
    inventory = tmp_path / "many.ini"
    inventory.write_text(
        f"{hosts}[all:vars]\nansible_user=ops\n"
        f"ansible_ssh_private_key_file={bed.wanted.hosts}/ops_key\n"
        f'ansible_ssh_common_args="{jump} -o HostKeyAlias={OTHER}"\n'
    )
    environment = ansible_environment(for_hosts(FORKS))
    environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(tmp_path / "cp")
    retries = os.environ.get("JUMP_RETRIES_TRIED")  # to see what is lost without
    if retries:
        environment["ANSIBLE_SSH_RETRIES"] = retries
    with bare.changed({OTHER: (MANY, ONE)}):
        done = bed.run(
            CONTROL / "ansible", "-i", inventory, "all", "-m", "raw", "-a", "true",
            env=environment, cwd=tmp_path, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rc=0") == FORKS
