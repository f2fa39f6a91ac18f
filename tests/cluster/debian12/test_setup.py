"""Logins during setup, and the lock that lets only one command change the hosts at a time."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from ftcluster.ansible.processes import descendants
from tests.cluster.cluster import PREFIX, Cluster
from tests.cluster.control import ADDRESS, HEAD, OTHER
from tests.programs import HANG_SECONDS

ACCOUNT = """
useradd -m -s /bin/bash careful && echo careful:sesame | chpasswd
cp -r /home/ops/.ssh /home/careful/ && chown -R careful: /home/careful
echo 'careful ALL=(ALL) ALL' > /etc/sudoers.d/careful
"""
# Ansible's connection stays open for a while, and userdel refuses an account in use
NO_ACCOUNT = """
pkill -KILL -u careful; sleep 1
userdel -r careful 2> /dev/null; rm /etc/sudoers.d/careful; ! getent passwd careful
"""


def test_vault_jump_host_and_a_password_for_become_go_through(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    (tmp_path / "vault").write_text("open\n")
    (tmp_path / "sudo").write_text("sesame\n")
    vault = ["--vault-password-file", str(tmp_path / "vault")]
    secret = control.ansible(
        "ansible-vault", "encrypt_string", *vault, "--name", "ansible_user", "careful"
    )
    assert secret.returncode == 0, secret.stderr
    [options] = re.findall(r"ansible_ssh_common_args=(.*)", bed.inventory())
    through = f"ssh -i {bed.wanted.hosts}/ops_key {options} -W %h:%p ops@{ADDRESS[HEAD]}"
    inventory = control.folder / "odd"
    (inventory / "host_vars").mkdir(parents=True)
    Path(control.inventory("odd.ini", (HEAD, OTHER))).rename(inventory / "hosts.ini")
    (inventory / f"host_vars/{HEAD}.yml").write_text(f"---\n{secret.stdout}")
    (inventory / f"host_vars/{OTHER}.yml").write_text(  # reached through the first host
        f'---\nansible_ssh_common_args: >-\n  {options} -o ProxyCommand="{through}"\n'
    )
    with control.changed({HEAD: (ACCOUNT, NO_ACCOUNT)}):
        done = control.run("setup", str(inventory), "--tags", "preflight,system", *vault,
                           "--become-password-file", str(tmp_path / "sudo"),
                           ANSIBLE_SSH_CONTROL_PATH_DIR=str(tmp_path / "cp"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "root is not available here" not in done.stderr
    assert "sesame" not in done.stdout + done.stderr
    logins = control.shell(OTHER, "journalctl --no-pager | grep 'Accepted publickey'")
    assert f"Accepted publickey for ops from {ADDRESS[HEAD]}" in logins


def test_the_second_of_two_setups_is_refused_by_name(cluster: Cluster) -> None:
    control = cluster.control
    first = control.start("setup", cluster.inventory, "--tags", "system")
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("system:"):
            break
    # stop the processes, so that the setup does not end soon
    signal_all((first.pid, *descendants(first.pid)), signal.SIGSTOP)
    try:
        second = control.run("setup", cluster.inventory, "--tags", "mesh")
    finally:
        signal_all((first.pid, *descendants(first.pid)), signal.SIGCONT)
    _, said = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode == 0, said
    assert second.returncode == 1
    assert re.search(r"another setup is .* by \S+ on \S+ \(process \d+\)", second.stderr)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        # Ansible's processes start and end all the time
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_rollback_without_a_previous_stack_says_so(cluster: Cluster) -> None:
    """The last task, which releases the lock, succeeds; Ansible warns about the missing folder."""
    control = cluster.control
    mode, config = control.folder.stat().st_mode, control.folder / "ansible.cfg"
    config.write_text("[defaults]\nforks = 5\n")
    control.folder.chmod(0o777)
    try:
        refused = control.run("setup", cluster.inventory, "--rollback")
    finally:
        control.folder.chmod(mode)
        config.unlink()
    assert refused.returncode == 1
    error = refused.stderr.partition("error: ")[2]
    assert f"{HEAD}, {OTHER}: " in error
    assert f"there is no previous stack in {PREFIX} to return to" in error
    assert "world writable" not in error


@pytest.mark.long
def test_rollback_and_teardown_wait_for_a_setup_as_well(cluster: Cluster) -> None:
    control = cluster.control
    before = control.snapshots()
    boot = control.shell(OTHER, "cat /proc/sys/kernel/random/boot_id").strip()
    # files that a setup from another control node writes while it runs
    lock = json.dumps({"owner": "there 1 1", "control": "there", "boot": boot,
                       "who": "ops on bastion (process 1)", "since": time.time()})  # fmt: skip
    path = f"{PREFIX}/.setup"
    with control.changed({OTHER: (f"echo '{lock}' > {path}", f"rm {path}")}):
        for command in (
            ("setup", cluster.inventory, "--rollback"),
            ("teardown", cluster.inventory),
        ):
            refused = control.run(*command)
            assert refused.returncode == 1
            assert re.search(
                rf"{OTHER}: .*another setup is .* by ops on bastion \(process 1\)", refused.stderr
            )
    assert control.snapshots() == before
