"""Root and the firewall are not lost without a word, and what listens is closed to others."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.hosts.cluster import ADDRESS, HEAD, NAMES, OTHER, THIRD, Cluster
from tests.programs import ROOT

# a host that does not know its own name, so that sudo warns; login scripts that print, one without
# a line end; sudo's lecture
TALKS = r"""
cp -a /etc/hosts /root/hosts && sed -i "/$(hostname)/d" /etc/hosts
cp -a /home/ops/.bashrc /root/bashrc
printf 'echo 0; echo nft none; printf more' > /home/ops/.bashrc
echo 'echo 0' > /etc/profile.d/talks.sh
echo 'Defaults lecture=always' > /etc/sudoers.d/talks
"""
QUIET = """
mv /root/hosts /etc/hosts
mv /root/bashrc /home/ops/.bashrc
rm /etc/profile.d/talks.sh /etc/sudoers.d/talks
"""
PASSWORD = "cp -a /etc/sudoers.d/ops /root/ && sed -i s/NOPASSWD:// /etc/sudoers.d/ops"
NO_PASSWORD = "mv /root/ops /etc/sudoers.d/ops"
NO_SUDO, SUDO = "mv /usr/bin/sudo /usr/bin/away", "mv /usr/bin/away /usr/bin/sudo"
LISTEN = "import socket, time; s = socket.create_server(('', {port})); time.sleep(300)"


def shell(cluster: Cluster, host: str, command: str) -> str:
    return cluster.control.bed.exec_(host, "sh", "-c", command, check=True).stdout


@contextmanager
def changed(cluster: Cluster, changes: dict[str, tuple[str, str]]) -> Iterator[None]:
    """Hosts on which a command was run; another one puts it back."""
    done = []
    try:
        for host, (change, back) in changes.items():
            shell(cluster, host, change)
            done.append((host, back))
        yield
    finally:
        for host, back in done:
            shell(cluster, host, back)


def nonsense() -> dict[str, Any]:
    """Every public variable of the roles that setup gives its own values, as another role's."""
    found: dict[str, Any] = {}
    for role in ("account", "firewall", "os_package", "preflight", "ssh_mesh", "tcmalloc",
                 "tuning", "verify", "virtualenv"):  # fmt: skip
        text = (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text(encoding="utf-8")
        for name, option in yaml.safe_load(text)["argument_specs"]["main"]["options"].items():
            found[name] = {
                "list": ["9"], "dict": {"python": "9.9"}, "bool": not option.get("default"),
                "int": 7,
            }.get(option["type"], "/nowhere")  # fmt: skip
    found |= {"torch_stack_prefix": "/nowhere", "torch_stack_hosts": ["nobody"]}
    return found


def test_hosts_that_talk_and_variables_of_other_roles_change_nothing(cluster: Cluster) -> None:
    inventory = Path(cluster.inventory)
    folder = inventory.parent / "group_vars"
    folder.mkdir()
    (folder / "all.yml").write_text(json.dumps(nonsense()))
    try:
        with changed(cluster, {HEAD: (TALKS, QUIET), OTHER: (TALKS, QUIET)}):
            warned = cluster.control.bed.ssh(HEAD, "sudo id -u")
            assert "unable to resolve host" in warned.stderr, "sudo does not warn here"
            assert warned.stdout.startswith("0\nnft none\nmore"), "no login script talks"
            done = cluster.control.run("setup", cluster.inventory, "--json")
    finally:
        (folder / "all.yml").unlink()
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    assert "no root here" not in done.stderr
    hosts = json.loads(done.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(NAMES, 0)


def test_hosts_without_the_root_that_is_required_are_named_before_a_change(
    cluster: Cluster,
) -> None:
    control = cluster.control
    before = {name: control.snapshot(name) for name in NAMES}
    with changed(cluster, {OTHER: (NO_SUDO, SUDO), THIRD: (PASSWORD, NO_PASSWORD)}):
        done = control.run("setup", cluster.inventory, "-e", "ftcluster_root=required")
        wrong = control.run("setup", cluster.inventory, "--limit", THIRD, "--tags", "preflight",
                            "-e", "ansible_become_password=wrong")  # fmt: skip
    assert done.returncode == wrong.returncode == 1
    assert "nothing was changed" in done.stderr
    said = done.stderr.rpartition("setup failed on 2 of 3 hosts")[2]
    assert re.search(rf"{OTHER}: .*: root is required, but .*: there is no sudo; give", said)
    assert re.search(rf"{THIRD}: .*: root is required, .* sudo asks for a password", said)
    assert "sudo refuses the password" in wrong.stderr
    misspelled = control.run("setup", cluster.inventory, "-e", "ftcluster_firewall=requird")
    assert misspelled.returncode == 1
    assert "ftcluster_firewall is 'requird'; set it to true, false or required" in misspelled.stderr
    assert {name: control.snapshot(name) for name in NAMES} == before


def test_without_root_the_open_ports_are_named(cluster: Cluster) -> None:
    options = ("--tags", "preflight,system", "-e", "ftcluster_root=false")
    done = cluster.control.run("setup", cluster.inventory, *options)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert re.search(rf"{name}: no root here.*TCP ports 29500-29999 and 32768-60999 of this "
                         rf"host are open to everybody.*let in only {ADDRESS[HEAD]}, ",
                         done.stderr), done.stderr  # fmt: skip


def test_without_nftables_the_open_ports_are_named_or_the_host_is_refused(
    cluster: Cluster,
) -> None:
    setup = ("setup", cluster.inventory, "--tags", "system", "--limit", OTHER)
    nft = ("mv /usr/sbin/nft /usr/sbin/away", "mv /usr/sbin/away /usr/sbin/nft")
    with changed(cluster, {OTHER: nft}):
        named = cluster.control.run(*setup)
        refused = cluster.control.run(*setup, "-e", "ftcluster_firewall=required")
    assert named.returncode == 0, named.stderr
    notice = rf"{OTHER}: nftables cannot be used here .*so TCP ports 29500-29999 and 32768-60999 of"
    assert re.search(notice, named.stderr), named.stderr
    assert refused.returncode == 1
    assert "there is no program nft" in refused.stderr


def test_the_hosts_own_local_ports_are_closed_but_for_services_that_are_named(
    cluster: Cluster,
) -> None:
    control = cluster.control
    ports = "sysctl -qw net.ipv4.ip_local_port_range='{}' net.ipv4.ip_local_reserved_ports='{}'"
    listen = "; ".join(
        f'systemd-run -q --unit listen{port} python3 -c "{LISTEN.format(port=port)}"'
        for port in (11111, 11112)
    )
    other = (
        f"{ports.format('10000 65535', '11112')}; {listen}",
        f"{ports.format('32768 60999', '')}; systemctl stop listen11111 listen11112",
    )
    setup = ("setup", cluster.inventory, "--tags", "preflight,system", "--limit", OTHER)
    try:
        with changed(cluster, {OTHER: other}):
            refused = control.run(*setup)
            assert refused.returncode == 1
            assert re.search(rf"{OTHER}: .*: 11111 \(of root\); say which is meant", refused.stderr)
            assert "11112" not in refused.stderr, "a reserved port is given to nobody"
            known = control.run(
                *setup, "-e", json.dumps({"ftcluster_firewall_open_ports": [11111]})
            )
            assert known.returncode == 0, known.stderr
            rules = shell(cluster, OTHER, "nft list table inet ftcluster")
            assert re.search(r"elements = \{ 10000-11111, 11113-65535 \}", rules), rules
            assert re.search(r"elements = \{ 22, 11111 \}", rules), rules
            others = shell(cluster, THIRD, "nft list table inet ftcluster")
            assert "29500-29999, 32768-60999" in others
    finally:
        again = control.run(*setup)
    assert again.returncode == 0, again.stderr


def listening(cluster: Cluster, host: str) -> "set[int]":
    """The ports that were listened at for other hosts meanwhile, until /run/stop is there."""
    lines = shell(cluster, host, "cat /run/heard").splitlines()
    return {int(line.rpartition(":")[2]) for line in lines if not line.startswith("127.")}


def test_what_listens_in_verify_and_in_a_training_is_closed(cluster: Cluster) -> None:
    control = cluster.control
    watch = (
        "rm -f /run/stop; systemd-run -q --unit heard sh -c "
        "'while [ ! -e /run/stop ]; do ss -Hltn; sleep 0.1; done | "
        'awk "{print \\$4}" | sort -u > /run/heard.new; mv /run/heard.new /run/heard\''
    )
    stop = "touch /run/stop; while [ ! -e /run/heard ]; do sleep 0.1; done"
    clear = "rm -f /run/stop /run/heard"
    before = {name: shell(cluster, name, "ss -Hltn | awk '{print $4}'") for name in NAMES}
    with changed(cluster, dict.fromkeys(NAMES, (watch, clear))):
        try:
            proved = control.run("setup", cluster.inventory, "--tags", "verify")
            done = control.run("train", "quickstart", "--ranks-per-host", "1",
                               "training.max_steps=3", "--json")  # fmt: skip
        finally:
            for name in NAMES:
                shell(cluster, name, stop)
        heard = {name: listening(cluster, name) for name in NAMES}
    assert proved.returncode == done.returncode == 0, proved.stderr + done.stderr
    assert "their ports are closed to this machine, which is not one of them" in proved.stdout
    closed = {*range(29500, 30000), *range(32768, 61000)}
    for name in NAMES:
        known = {int(line.rpartition(":")[2]) for line in before[name].split()}
        assert heard[name] - known, f"nothing was heard on {name}"
        assert heard[name] - known <= closed, sorted(heard[name] - known - closed)


def test_a_host_that_lets_the_control_node_in_is_found(cluster: Cluster) -> None:
    control = cluster.control
    verify = ("setup", cluster.inventory, "--tags", "verify")
    load = "systemctl reload ftcluster-firewall"
    with changed(cluster, {OTHER: ("nft delete table inet ftcluster", load)}):
        warned = control.run(*verify)
        refused = control.run(*verify, "-e", "ftcluster_firewall=required")
    what = rf"{OTHER}: TCP ports of training are open to 198\.18\.0\.1, which is not one of the"
    assert warned.returncode == 0, warned.stderr
    assert re.search(what, warned.stderr), warned.stderr
    assert "closed to this machine" not in warned.stdout
    assert refused.returncode == 1
    assert re.search(what, refused.stderr), refused.stderr
    for name in (HEAD, THIRD):
        assert f"{name}: TCP ports" not in warned.stderr
