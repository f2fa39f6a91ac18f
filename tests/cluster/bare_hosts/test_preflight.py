"""Preflight names every problem of every host before anything is changed."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.cluster.control import HEAD, NAMES, OTHER, THIRD, Control

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
SMALL_DISK = "mkdir -p /mnt/small && mount -t tmpfs -o size=50m tmpfs /mnt/small"
NO_SMALL_DISK = "umount /mnt/small && rmdir /mnt/small"
WRONG_CLOCK = (
    "cp /etc/environment /root/ && "
    f"printf 'LD_PRELOAD={FAKETIME}\\nFAKETIME=+3600\\n' >> /etc/environment"
)
RIGHT_CLOCK = "mv /root/environment /etc/environment"
PASSWORD = "cp -a /etc/sudoers.d/ops /root/ && sed -i s/NOPASSWD:// /etc/sudoers.d/ops"
NO_PASSWORD = "mv /root/ops /etc/sudoers.d/ops"
TERMINAL = "echo 'Defaults requiretty' > /etc/sudoers.d/terminal"
NO_TERMINAL = "rm /etc/sudoers.d/terminal"
NO_SUDO, SUDO = "mv /usr/bin/sudo /usr/bin/away", "mv /usr/bin/away /usr/bin/sudo"


@pytest.fixture
def fresh(tmp_path: Path) -> dict[str, str]:
    """Return an environment without open connections, which would keep the former environment."""
    return {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}


def failures(stderr: str, count: int) -> dict[str, str]:
    """Return the summary's problems of each host; hosts with the same problem share a line."""
    summary = stderr.partition(f"setup failed on {count} of 3 hosts")[2]
    assert summary, stderr
    parts = re.split(r"^  (node\d(?:, node\d)*): ", summary, flags=re.MULTILINE)
    of: dict[str, str] = {}
    for names, problem in zip(parts[1::2], parts[2::2], strict=True):
        for name in names.split(", "):
            of[name] = of.get(name, "") + problem
    return of


def test_every_problem_of_every_host_before_anything_is_changed(
    bare: Control, fresh: dict[str, str]
) -> None:
    folder = {HEAD: "/proc/ftcluster", OTHER: "/mnt/small/ft", THIRD: "/opt/ftcluster"}
    inventory = bare.inventory(
        "bad.ini", NAMES, lambda host, line: f"{line} ftcluster_prefix={folder[host]}"
    )
    needs = json.dumps({"ftcluster_requirements": {
        "machine": "x86_64", "python": "3.99", "free_bytes": 5e9,
        "memory_bytes": 3e9, "clock_seconds": 5}})  # fmt: skip
    changes = {OTHER: (SMALL_DISK, NO_SMALL_DISK), THIRD: (WRONG_CLOCK, RIGHT_CLOCK)}
    with bare.changed(changes):
        done = bare.run("setup", inventory, "-e", needs, **fresh)
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    of = failures(done.stderr, 3)
    for name in NAMES:
        assert re.search(r"Python 3\.11\.\d+ .* 3\.99 ", of[name])
    assert "/proc/ftcluster is not writable" in of[HEAD]
    assert "0.1 GB are free at /mnt/small/ft" in of[OTHER]
    assert re.search(r"its clock is (3599|3600)\.\d s ahead of the clock of node[01]", of[THIRD])
    assert "mpirun needs the same path on all" in done.stderr


def test_hosts_without_the_root_that_is_required_are_named(
    bare: Control, fresh: dict[str, str]
) -> None:
    inventory = bare.inventory("root.ini", NAMES)
    before = bare.snapshots()
    changes = {
        HEAD: (TERMINAL, NO_TERMINAL),
        OTHER: (NO_SUDO, SUDO),
        THIRD: (PASSWORD, NO_PASSWORD),
    }
    with bare.changed(changes):
        done = bare.run("setup", inventory, "-e", "ftcluster_root=required", **fresh)
        wrong = bare.run("setup", inventory, "--limit", f"{HEAD},{THIRD}", "--tags", "preflight",
                         "-e", "ansible_become_password=wrong",
                         "-e", "ftcluster_root=required", **fresh)  # fmt: skip
    assert done.returncode == wrong.returncode == 1
    assert "nothing was changed" in done.stderr
    of = failures(done.stderr, 3)
    assert re.search("root is required, .* sudo requires a terminal", of[HEAD])
    assert re.search("root is required, but .* sudo is not installed", of[OTHER])
    assert re.search("root is required, .* sudo asks for a password", of[THIRD])
    assert "sudo refuses the password" in wrong.stderr
    # sudo prints this even if the password is right
    assert "sudo requires a terminal" in wrong.stderr
    misspelled = bare.run("setup", inventory, "-e", "ftcluster_firewall=requird")
    assert misspelled.returncode == 1
    assert "ftcluster_firewall is 'requird'" in misspelled.stderr
    assert bare.snapshots() == before


def test_a_wrong_key_and_a_host_that_is_off_are_named(
    bare: Control, fresh: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    bare.bed.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, check=True)

    def change(host: str, line: str) -> str:
        return f"{line} ansible_ssh_private_key_file={key}" if host == OTHER else line

    inventory = bare.inventory("key.ini", NAMES, change)
    bare.bed.kill(THIRD)
    began = time.monotonic()
    try:
        done = bare.run("setup", inventory, "--tags", "preflight", **fresh)
    finally:
        bare.bed.boot(THIRD)
    assert done.returncode == 1
    of = failures(done.stderr, 2)
    assert "Permission denied" in of[OTHER]
    assert re.search("timed out|No route to host", of[THIRD])
    assert time.monotonic() - began < 60
