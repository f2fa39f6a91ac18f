"""What the role verify tells its program of the hosts' facts."""

from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ftcluster_common.network import HostNetwork
from tests.programs import ROOT

FACTS = {
    "nics": [{"name": "eth0", "speed_mbits": 1000}, {"name": "veth0", "speed_mbits": None}],
    "network_interface": "eth0", "network_provider": "auto", "rdma": [], "rdma_libraries": [],
    "locks_memory": False, "rank_user": "ftcluster", "hostname": "a",
    "host_firewall": "ufw", "local_ports": ["1024-65535"],
    "firewall_rules": True,
}  # fmt: skip


def requested(key: str) -> Any:
    """A part of the request for a host with facts and for a head that --limit leaves out."""
    variables = DataLoader().load_from_file(
        str(ROOT / "roles/verify/vars/main.yml"), trusted_as_template=True
    )
    hosts = {"a": {"preflight_facts": FACTS}, "b": {}}
    known = {"hostvars": hosts, "verify__names": list(hosts)}
    templar = Templar(loader=DataLoader(), variables=known)
    return templar.template(variables["verify__request"][key])


def test_known_speeds_of_interfaces() -> None:
    assert requested("mbits") == {"a": {"eth0": 1000}, "b": {}}


def test_what_hosts_have_for_mpi() -> None:
    found = requested("networks")
    assert list(found) == ["a"]
    expected = HostNetwork("eth0", locks_memory=True)  # setup raises the limit of its account
    assert HostNetwork.from_dict(found["a"]) == expected


def test_firewalls_that_a_known_program_manages() -> None:
    ufw = {"program": "ufw", "ports": ["29500-29999", "1024-65535"]}
    assert requested("firewalls") == {"a": ufw}


def test_hosts_on_which_setup_has_closed_the_ports() -> None:
    assert requested("guarded") == ["a"]
