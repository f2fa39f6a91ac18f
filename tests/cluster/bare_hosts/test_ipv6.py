"""Hosts that have only IPv6 addresses, and hosts with both kinds that are reached by IPv6.

Several hosts that have only IPv6 cannot form a cluster, because mpirun of Intel MPI reaches hosts
by IPv4.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.bare_hosts.test_preflight import failures
from tests.cluster.control import ADDRESS, NAMES, Control

CONTROL6 = "fd00:198::1/64"
ADDRESS6 = {name: f"fd00:198::{address.split('.')[-1]}" for name, address in ADDRESS.items()}
BOTH = "ip address add {six}/64 dev eth0 nodad"
NOT_BOTH = "ip address del {six}/64 dev eth0"
ALONE = "ip address del {four}/24 dev eth0"
NOT_ALONE = "ip address add {four}/24 dev eth0 && ip route add default via 198.18.0.1"


@pytest.fixture
def reached_by_ipv6(bare: Control) -> Iterator[None]:
    bare.bed.run("ip", "address", "add", CONTROL6, "dev", "br0", "nodad", check=True)
    changes = {
        name: (BOTH.format(six=six), NOT_BOTH.format(six=six)) for name, six in ADDRESS6.items()
    }
    with bare.changed(changes):
        yield
    bare.bed.run("ip", "address", "del", CONTROL6, "dev", "br0", check=True)


def by_ipv6(host: str, line: str) -> str:
    key = f"ansible_ssh_extra_args='-o HostKeyAlias={ADDRESS[host]}'"
    return f"{line.replace(ADDRESS[host], ADDRESS6[host])} {key}"


def without_ipv4(names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    return {
        name: (ALONE.format(four=ADDRESS[name]), NOT_ALONE.format(four=ADDRESS[name]))
        for name in names
    }


@pytest.mark.usefixtures("reached_by_ipv6")
def test_hosts_with_ipv6_alone_are_named_before_anything_is_changed(
    bare: Control, tmp_path: Path
) -> None:
    fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
    inventory = bare.inventory("ipv6.ini", NAMES, by_ipv6)
    options = ("--tags", "preflight", "--skip-tags", "stack,system")
    with bare.changed(without_ipv4(NAMES[1:])):
        done = bare.run("setup", inventory, *options, **fresh)
        # a single host needs no addresses of other hosts
        one = bare.inventory("one.ini", NAMES[1:2], by_ipv6)
        alone = bare.run("setup", one, *options, **fresh)
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    of = failures(done.stderr, 2)
    assert list(of) == list(NAMES[1:])
    for name, said in of.items():
        assert ADDRESS6[name] in said
        assert "IPv4" in said
        assert "ftcluster_address" in said
    assert alone.returncode == 0, alone.stderr


@pytest.mark.usefixtures("reached_by_ipv6")
def test_hosts_that_are_reached_by_ipv6_take_part_with_ipv4(bare: Control, tmp_path: Path) -> None:
    inventory = bare.inventory("both.ini", NAMES, by_ipv6)
    fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
    done = bare.run(
        "setup", inventory, "--tags", "preflight,mesh", "-e", "ftcluster_root=false", **fresh
    )
    assert done.returncode == 0, done.stderr
    mesh = "~/.local/share/ftcluster/mesh"
    for name, address in [*ADDRESS.items()][1:]:
        config = bare.bed.ssh(NAMES[0], f"ssh -F {mesh}/ssh_config -G {name}").stdout
        assert f"\nhostname {address}\n" in config
        reached = bare.bed.ssh(NAMES[0], f"ssh -F {mesh}/ssh_config {name} hostname")
        assert reached.stdout.strip() == name, reached.stderr
    gone = bare.run("teardown", inventory, "-e", "ftcluster_root=false", **fresh)
    assert gone.returncode == 0, gone.stderr
