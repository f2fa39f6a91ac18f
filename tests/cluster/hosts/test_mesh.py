"""The mesh and the firewall: who gets from which host to which, and who does not."""

import re
import time
from pathlib import Path

from tests.cluster.hosts.cluster import (
    ADDRESS,
    HEAD,
    MESH,
    OTHER,
    THIRD,
    TWO,
    Cluster,
    no_rank_is_left,
)


def test_ssh_itself_says_that_the_mesh_is_strict(cluster: Cluster) -> None:
    bed = cluster.control.bed
    for name in (OTHER, ADDRESS[OTHER]):
        said = cluster.control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config -G {name}").stdout
        for setting in (
            "stricthostkeychecking true", "connecttimeout 5", "serveraliveinterval 5",
            "batchmode yes", "identitiesonly yes", "passwordauthentication no", "user ftcluster",
            f"hostname {ADDRESS[OTHER]}", f"identityfile {MESH}/id_ed25519",
        ):  # fmt: skip
            assert f"\n{setting}\n" in f"\n{said}", setting
        reached = cluster.control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config {name} hostname")
        assert reached.stdout.strip() == OTHER, reached.stderr
    where = f"user=ftcluster,host={HEAD},addr={ADDRESS[HEAD]}"
    server = bed.exec_(OTHER, "sshd", "-T", "-C", where, check=True).stdout
    assert "pubkeyauthentication yes" in server
    known = bed.exec_(HEAD, "cat", f"{MESH}/known_hosts", check=True).stdout
    real = bed.exec_(OTHER, "cat", "/etc/ssh/ssh_host_ed25519_key.pub", check=True).stdout
    assert f"{OTHER},{ADDRESS[OTHER]} {' '.join(real.split()[:2])}\n" in known


def test_the_key_opens_nothing_but_commands_from_the_head(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    assert (
        bed.exec_(OTHER, "find", "/opt/ftcluster", "/var/lib/ftcluster", "-name", "id_*").stdout
        == ""
    )
    mode = bed.exec_(HEAD, "stat", "-c", "%a %U", f"{MESH}/id_ed25519", check=True).stdout
    assert mode.strip() == "600 ftcluster"
    lines = bed.exec_(OTHER, "cat", "/var/lib/ftcluster/.ssh/authorized_keys", check=True).stdout
    assert re.fullmatch(
        rf'restrict,from="{re.escape(ADDRESS[HEAD])}" ssh-ed25519 \S+ ftcluster-mesh@{HEAD}\n',
        lines,
    )
    through = control.as_ranks(
        HEAD, f"ssh -F {MESH}/ssh_config -W 127.0.0.1:22 {OTHER} < /dev/null"
    )
    assert "administratively prohibited" in through.stderr
    # a thief on another host
    key = bed.exec_(HEAD, "cat", f"{MESH}/id_ed25519", check=True).stdout
    ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    stolen = f"umask 077; echo '{key}' > /tmp/key; {ssh} -i /tmp/key ftcluster@{ADDRESS[THIRD]} id"
    refused = bed.exec_(OTHER, "sh", "-c", f"{stolen}; code=$?; rm /tmp/key; exit $code")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_the_firewall_lets_the_cluster_in_and_nobody_else(cluster: Cluster) -> None:
    bed = cluster.control.bed
    rules = bed.exec_(OTHER, "nft", "list", "ruleset", check=True).stdout
    assert re.findall(r"^table (.*) \{", rules, re.MULTILINE) == ["inet ftcluster"]
    for address in ADDRESS.values():
        assert address in rules
    server = "import socket; s = socket.create_server(('', PORT)); s.settimeout(40); s.accept()"
    client = "import socket; socket.create_connection((HOST, PORT), timeout=3); print('in')"
    for port in (29555, 41234, 8080):
        listen = ["systemd-run", "-q", "python3", "-c", server.replace("PORT", str(port))]
        bed.exec_(OTHER, *listen, check=True)
        time.sleep(0.5)
        program = client.replace("HOST", repr(ADDRESS[OTHER])).replace("PORT", str(port))
        stranger = bed.run("python3", "-c", program)
        # what no training uses stays as it was
        assert ("in" in stranger.stdout) == (port == 8080), (port, stranger.stderr)
        if port != 8080:
            friend = bed.exec_(HEAD, "python3", "-c", program)
            assert "in" in friend.stdout, (port, friend.stderr)


def test_a_changed_host_key_is_refused_by_name(cluster: Cluster) -> None:
    """The operator has accepted the new key; the mesh has not been told."""
    control, bed = cluster.control, cluster.control.bed
    keys = "/etc/ssh/ssh_host_ed25519_key"
    kept = bed.exec_(OTHER, "sh", "-c", f"cp -a {keys} /root/k; cp -a {keys}.pub /root/k.pub",
                     check=True)  # fmt: skip
    assert kept.returncode == 0
    trusted = Path(re.search(r"UserKnownHostsFile=(\S+)", bed.inventory())[1])  # type: ignore[index]
    before = trusted.read_text()
    change = f"rm {keys}*; ssh-keygen -q -t ed25519 -N '' -f {keys}; systemctl restart ssh"
    try:
        bed.exec_(OTHER, "sh", "-c", change, check=True)
        new = bed.exec_(OTHER, "cat", f"{keys}.pub", check=True).stdout
        others = [line for line in before.splitlines() if not line.startswith(OTHER)]
        trusted.write_text("\n".join([*others, f"{OTHER},{ADDRESS[OTHER]} {new}"]) + "\n")
        refused = control.run("train", "quickstart", *TWO, "training.max_steps=2")
        assert refused.returncode == 1
        assert f"{OTHER} ({ADDRESS[OTHER]}): ssh from the head fails" in refused.stderr
        assert "its host key has changed since the last setup" in refused.stderr
        assert "step " not in refused.stderr
        no_rank_is_left(cluster)
    finally:
        back = f"mv /root/k {keys}; mv /root/k.pub {keys}.pub; systemctl restart ssh"
        bed.exec_(OTHER, "sh", "-c", back, check=True)
        trusted.write_text(before)


def test_without_root_the_login_users_trust_each_other(cluster: Cluster, tmp_path: Path) -> None:
    control, bed = cluster.control, cluster.control.bed
    before = bed.exec_(OTHER, "cat", "/home/ops/.ssh/authorized_keys", check=True).stdout
    options = ("--tags", "preflight,mesh", "-e", "ftcluster_root=false")
    apart = {"XDG_STATE_HOME": str(tmp_path)}  # teardown forgets the cluster
    done = control.run("setup", cluster.inventory, *options, **apart)
    assert done.returncode == 0, done.stderr
    mesh = "~/.local/share/ftcluster/mesh"
    reached = bed.ssh(HEAD, f"ssh -F {mesh}/ssh_config {OTHER} whoami")
    assert reached.stdout.strip() == "ops", reached.stderr
    removed = control.run("teardown", cluster.inventory, "-e", "ftcluster_root=false", **apart)
    assert removed.returncode == 0, removed.stderr
    assert bed.exec_(OTHER, "cat", "/home/ops/.ssh/authorized_keys").stdout == before
