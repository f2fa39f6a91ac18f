"""Setup on several hosts: what it refuses, leaves alone, and takes from the command line."""

import json
import re
import time
from pathlib import Path

from tests.cluster.hosts.cluster import ADDRESS, HEAD, NAMES, OTHER, THIRD, Cluster

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def test_a_second_run_changes_nothing(cluster: Cluster) -> None:
    again = cluster.control.run("setup", "--json")
    assert again.returncode == 0, again.stderr
    hosts = json.loads(again.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(NAMES, 0)


def test_limit_touches_one_host_and_forgets_none(cluster: Cluster) -> None:
    limited = cluster.control.run("setup", cluster.inventory, "--limit", OTHER, "--json")
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout)["hosts"][OTHER]["changed"] == 0
    assert HEAD not in limited.stderr.replace("changed", "")
    planned = cluster.control.run("train", "--dry-run", "--json", "--ranks-per-host", "1")
    assert json.loads(planned.stdout)["world_size"] == 3


def test_every_problem_of_every_host_before_anything_is_changed(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    small = "mkdir -p /mnt/small && mount -t tmpfs -o size=50m tmpfs /mnt/small"
    clock = f"printf 'LD_PRELOAD={FAKETIME}\\nFAKETIME=+3600\\n' >> /etc/environment"
    bed.exec_(OTHER, "sh", "-c", small, check=True)
    bed.exec_(THIRD, "sh", "-c", f"cp /etc/environment /root/environment; {clock}", check=True)
    folder = {HEAD: "/proc/ftcluster", OTHER: "/mnt/small/ft", THIRD: "/opt/ftcluster"}
    inventory = control.inventory(
        "bad.ini", NAMES, lambda host, line: f"{line} ftcluster_prefix={folder[host]}"
    )
    needs = json.dumps({"ftcluster_requirements": {
        "machine": "x86_64", "python": "3.99", "free_bytes": 5e9,
        "memory_bytes": 3e9, "clock_seconds": 5}})  # fmt: skip
    try:
        # a connection that is still open has the environment from before
        fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
        done = control.run("setup", inventory, "-e", needs, **fresh)
    finally:
        bed.exec_(OTHER, "umount", "/mnt/small", check=True)
        bed.exec_(OTHER, "rmdir", "/mnt/small", check=True)
        bed.exec_(THIRD, "mv", "/root/environment", "/etc/environment", check=True)
    assert done.returncode == 1
    assert "setup failed on 3 of 3 hosts" in done.stderr
    assert "nothing was changed; fix this" in done.stderr
    text = done.stderr[done.stderr.index("setup failed on 3") :]
    of = {name: text[text.index(f"\n  {name}: ") :] for name in NAMES}
    of = {HEAD: of[HEAD].split(f"\n  {OTHER}: ")[0], OTHER: of[OTHER].split(f"\n  {THIRD}: ")[0],
          THIRD: of[THIRD]}  # fmt: skip
    for name in NAMES:
        assert re.search(r"Python 3\.11\.\d+ is too old, 3\.99 or newer is needed", of[name])
    assert "/proc/ftcluster is not writable" in of[HEAD]
    assert "0.1 GB free at /mnt/small/ft" in of[OTHER]
    assert re.search(r"its clock is (3599|3600)\.\d s ahead of that of node[01]", of[THIRD])
    assert "mpirun needs the same path on all" in text


def test_a_wrong_key_and_a_host_that_is_off_are_named(cluster: Cluster, tmp_path: Path) -> None:
    control, bed = cluster.control, cluster.control.bed
    key = tmp_path / "key"
    control.bed.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, check=True)

    def change(host: str, line: str) -> str:
        return f"{line} ansible_ssh_private_key_file={key}" if host == OTHER else line

    inventory = control.inventory("key.ini", NAMES, change)
    bed.kill(THIRD)
    began = time.monotonic()
    try:
        # a connection that is still open would let anyone in
        fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
        done = control.run("setup", inventory, "--tags", "preflight", **fresh)
    finally:
        bed.boot(THIRD)
    assert done.returncode == 1
    assert "setup failed on 2 of 3 hosts" in done.stderr
    assert re.search(rf"{OTHER}: .*Permission denied", done.stderr)
    assert re.search(rf"{THIRD}: .*(timed out|No route to host)", done.stderr)
    assert time.monotonic() - began < 60


def test_vault_jump_host_and_a_password_for_become_go_through(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    account = (
        "useradd -m -s /bin/bash careful && echo careful:sesame | chpasswd && "
        "cp -r /home/ops/.ssh /home/careful/ && chown -R careful: /home/careful && "
        "echo 'careful ALL=(ALL) ALL' > /etc/sudoers.d/careful"
    )
    bed.exec_(HEAD, "sh", "-c", account, check=True)
    (tmp_path / "vault").write_text("open\n")
    (tmp_path / "sudo").write_text("sesame\n")
    vault = ["--vault-password-file", str(tmp_path / "vault")]
    secret = control.ansible(
        "ansible-vault", "encrypt_string", *vault, "--name", "ansible_user", "careful"
    )
    assert secret.returncode == 0, secret.stderr
    # the second host through the first
    options = re.search(r"ansible_ssh_common_args=(.*)", bed.inventory())[1]  # type: ignore[index]
    through = f"ssh -i {bed.wanted.hosts}/ops_key {options} -W %h:%p ops@{ADDRESS[HEAD]}"
    jump = f'-o ProxyCommand="{through}"'
    inventory = control.folder / "odd"
    (inventory / "host_vars").mkdir(parents=True)
    plain = Path(control.inventory("odd.ini", (HEAD, OTHER))).read_text()
    (inventory / "hosts.ini").write_text(plain)
    (inventory / "host_vars/node0.yml").write_text("---\n" + secret.stdout)
    (inventory / "host_vars/node1.yml").write_text(
        "---\nansible_ssh_common_args: >-\n  " + f"{options} {jump}\n"
    )
    done = control.run("setup", str(inventory), "--tags", "preflight,system", *vault,
                       "--become-password-file", str(tmp_path / "sudo"),
                       ANSIBLE_SSH_CONTROL_PATH_DIR=str(tmp_path / "cp"))  # fmt: skip
    # Ansible's connection stays open for a while, and userdel refuses an account in use
    remove = "pkill -KILL -u careful; sleep 1; userdel -r careful; rm /etc/sudoers.d/careful"
    bed.exec_(HEAD, "sh", "-c", remove)
    assert bed.exec_(HEAD, "getent", "passwd", "careful").returncode == 2
    assert done.returncode == 0, done.stderr
    assert "no root here" not in done.stderr
    assert "sesame" not in done.stdout + done.stderr
    came_from = bed.exec_(OTHER, "sh", "-c", "journalctl -u ssh --no-pager | grep Accepted").stdout
    assert f"Accepted publickey for ops from {ADDRESS[HEAD]}" in came_from


def test_the_second_of_two_setups_is_refused_by_name(cluster: Cluster) -> None:
    control = cluster.control
    first = control.start("setup", cluster.inventory, "--tags", "system,mesh")
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("system ..."):
            break
    second = control.run("setup", cluster.inventory, "--tags", "mesh")
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert second.returncode == 1
    assert re.search(r"another setup is running here: \S+ on \S+ \(process \d+\)", second.stderr)
    later = control.run("setup", cluster.inventory, "--tags", "mesh")
    assert later.returncode == 0, later.stderr


# What a setup from another control node has written while it is at work.
LOCK = """
import json, time
from pathlib import Path
boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
lock = {"owner": "there 1 1", "control": "there", "who": "ops on bastion (process 1)",
        "since": time.time(), "boot": boot}
Path("/opt/ftcluster/.setup").write_text(json.dumps(lock))
"""


def test_rollback_and_teardown_wait_for_a_setup_as_well(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    before = control.snapshot(OTHER)
    bed.exec_(OTHER, "python3", "-c", LOCK, check=True)
    try:
        for command in (
            ("setup", cluster.inventory, "--rollback"),
            ("teardown", cluster.inventory),
        ):
            refused = control.run(*command)
            assert refused.returncode == 1
            assert f"{OTHER}: " in refused.stderr
            assert "another setup is running here: ops on bastion (process 1)" in refused.stderr
    finally:
        bed.exec_(OTHER, "rm", "/opt/ftcluster/.setup", check=True)
    assert control.snapshot(OTHER) == before
