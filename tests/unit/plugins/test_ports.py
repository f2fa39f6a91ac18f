from collections.abc import Callable

import yaml
from ansible_collections.ftcluster.cluster.plugins.module_utils.ports import listeners, local_ports

from ftcluster_common.protocol.launch import CLUSTER_PORTS, MPI_PORTS, RENDEZVOUS_PORTS
from tests.programs import ROOT

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
TCP = HEAD + (
    "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 1\n"
    "   1: 0100007F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n"
    "   2: 0A0012C6:0016 0100A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 1\n"
    "   3: 0A0012C6:9C41 00000000:0000 0A 00000000:00000000 00:00000000 00000000   106        0 1\n"
)
TCP6 = HEAD + "".join(
    f"   0: {address}:{port} {'0' * 32}:0000 0A 0:0 00:0 0 {user} 0 1\n"
    for address, port, user in (
        ("0" * 32, "1F90", 34),
        ("0" * 24 + "01000000", "9C42", 0),
        ("0000000000000000FFFF00000100007F", "9C43", 0),
    )
)


def files(**texts: str) -> Callable[[str], str]:
    return lambda path: texts.get(path.rpartition("/")[2], "")


def test_reserved_ports_are_given_to_nobody() -> None:
    assert local_ports(files()) == ["32768-60999"]
    assert local_ports(files(ip_local_port_range="20000\t30000\n")) == ["20000-30000"]
    reserved = files(ip_local_port_range="1024 65535", ip_local_reserved_ports="1024,8080-8081\n")
    assert local_ports(reserved) == ["1025-8079", "8082-65535"]


def test_listeners_that_other_hosts_reach() -> None:
    assert listeners(files(tcp=TCP, tcp6=TCP6)) == {8080: {33, 34}, 40001: {106}}
    assert listeners(files()) == {}


def test_the_ports_of_a_launch_are_those_that_other_local_users_do_not_get_to() -> None:
    defaults = yaml.safe_load((ROOT / "roles/firewall/defaults/main.yml").read_text())
    [text] = defaults["firewall_account_ports"]
    system = (ROOT / "playbooks/system.yml").read_text()
    assert f'firewall_account_ports: ["{text}"]' in system
    first, last = map(int, text.split("-"))
    assert {*range(first, last + 1)} == {*RENDEZVOUS_PORTS, *MPI_PORTS} < {*CLUSTER_PORTS}
    assert defaults["firewall_ports"][0] == f"{CLUSTER_PORTS.start}-{CLUSTER_PORTS.stop - 1}"
