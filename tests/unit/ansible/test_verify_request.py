"""What the role verify tells its program of the hosts' facts."""

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.programs import ROOT


def test_known_speeds_of_interfaces() -> None:
    variables = DataLoader().load_from_file(
        str(ROOT / "roles/verify/vars/main.yml"), trusted_as_template=True
    )
    nics = [{"name": "eth0", "speed_mbits": 1000}, {"name": "veth0", "speed_mbits": None}]
    hosts = {"a": {"preflight_facts": {"nics": nics}}, "b": {}}
    templar = Templar(
        loader=DataLoader(), variables={"hostvars": hosts, "verify__names": list(hosts)}
    )
    found = templar.template(variables["verify__request"]["mbits"])
    assert found == {"a": {"eth0": 1000}, "b": {}}
