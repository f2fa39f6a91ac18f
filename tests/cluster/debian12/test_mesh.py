"""The SSH mesh: which accounts can log in from which host to which host."""

import re
from pathlib import Path

from tests.cluster.cluster import MESH, Cluster
from tests.cluster.control import ADDRESS, HEAD, OTHER
from tests.cluster.debian12.conftest import ALONE


def test_ssh_itself_says_that_the_mesh_is_strict(cluster: Cluster) -> None:
    control = cluster.control
    for name in (OTHER, ADDRESS[OTHER]):
        said = control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config -G {name}").stdout.splitlines()
        for setting in (
            "stricthostkeychecking true", "connecttimeout 5", "serveraliveinterval 5",
            "batchmode yes", "identitiesonly yes", "passwordauthentication no", "user ftcluster",
            f"hostname {ADDRESS[OTHER]}", f"identityfile {MESH}/id_ed25519",
        ):  # fmt: skip
            assert setting in said
        reached = control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config {name} hostname")
        assert reached.stdout.strip() == OTHER, reached.stderr
    where = f"user=ftcluster,host={HEAD},addr={ADDRESS[HEAD]}"
    assert "pubkeyauthentication yes" in control.shell(OTHER, f"sshd -T -C {where}")
    known = control.shell(HEAD, f"cat {MESH}/known_hosts").splitlines()
    algorithm, key, *_ = control.shell(OTHER, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()
    assert f"{OTHER},{ADDRESS[OTHER]} {algorithm} {key}" in known


def test_the_key_opens_nothing_but_commands_from_the_head(cluster: Cluster, tmp_path: Path) -> None:
    control = cluster.control
    assert control.shell(OTHER, "find /opt/ftcluster /var/lib/ftcluster -name 'id_*'") == ""
    assert control.shell(HEAD, f"stat -c '%a %U' {MESH}/id_ed25519") == "600 ftcluster\n"
    lines = control.shell(OTHER, "cat /var/lib/ftcluster/.ssh/authorized_keys")
    head = re.escape(ADDRESS[HEAD])
    key = rf"ssh-ed25519 \S+ ftcluster-mesh@{HEAD} {MESH}"
    assert re.fullmatch(rf'restrict,from="{head}" {key}\n', lines)
    forward = f"ssh -F {MESH}/ssh_config -W 127.0.0.1:22 {OTHER} < /dev/null"
    assert "administratively prohibited" in control.as_ranks(HEAD, forward).stderr
    # an attacker on another machine who has stolen the key
    stolen = tmp_path / "key"
    stolen.touch(mode=0o600)
    stolen.write_text(control.shell(HEAD, f"cat {MESH}/id_ed25519"))
    trusting = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    own = ("-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", stolen)
    refused = control.bed.run("ssh", *own, *trusting, f"ftcluster@{ADDRESS[OTHER]}", "id")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_without_root_the_login_users_trust_each_other(cluster: Cluster, tmp_path: Path) -> None:
    control = cluster.control
    keys = "cat /home/ops/.ssh/authorized_keys"
    before = control.shell(OTHER, keys)
    options = ("--tags", "preflight,mesh", "-e", "ftcluster_root=false")
    apart = {"XDG_STATE_HOME": str(tmp_path)}  # teardown removes the record of the cluster
    with control.changed(ALONE):
        done = control.run("setup", cluster.inventory, *options, **apart)
    assert done.returncode == 0, done.stderr
    mesh = "~/.local/share/ftcluster/mesh"
    reached = control.bed.ssh(HEAD, f"ssh -F {mesh}/ssh_config {OTHER} whoami")
    assert reached.stdout.strip() == "ops", reached.stderr
    removed = control.run("teardown", cluster.inventory, "-e", "ftcluster_root=false", **apart)
    assert removed.returncode == 0, removed.stderr
    assert control.shell(OTHER, keys) == before
