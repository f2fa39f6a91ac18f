"""The inventories of docs/cloud.md, on variables as the plugins of the clouds set them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.ansible.inventory import read_inventory
from tests import ops_page
from tests.programs import ROOT

PAGE = (ROOT / "docs/cloud.md").read_text(encoding="utf-8")
FILES = {
    mark[1]: yaml.safe_load(block.text)
    for block in ops_page.blocks(PAGE)
    if (mark := re.fullmatch(r"<!-- file: xeons\.(\w+)\.yml -->", block.above))
}


def aws(number: int, role: dict[str, str]) -> dict[str, Any]:
    public = {"public_ip_address": f"192.0.2.{number}"} if number else {}
    return {"private_ip_address": f"10.0.0.{number}", "tags": {"cluster": "xeons"} | role, **public}


def azure(number: int, role: dict[str, str]) -> dict[str, Any]:
    public = [f"192.0.2.{number}"] if number else []
    return {
        "private_ipv4_addresses": [f"10.0.0.{number}"],
        "public_ipv4_addresses": public,
        "tags": role,
    }


def gcp(number: int, role: dict[str, str]) -> dict[str, Any]:
    access = [{"natIP": f"192.0.2.{number}"}] if number else [{"name": "External NAT"}]
    interface = {"networkIP": f"10.0.0.{number}", "accessConfigs": access}
    return {"networkInterfaces": [interface], "labels": {"cluster": "xeons"} | role}


@pytest.mark.parametrize(
    ("name", "variables"), [("aws_ec2", aws), ("azure_rm", azure), ("gcp_compute", gcp)]
)
def test_addresses_users_and_the_head(name: str, variables: Any, tmp_path: Path) -> None:
    page = FILES[name]
    assert page["plugin"].endswith(f".{name}")
    hosts = {f"x{n}": variables(n, {"role": "head"} if n == 1 else {}) for n in range(3)}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    groups = {
        "private": "ansible_host == ftcluster_address == '10.0.0.0'",
        "public": "[ansible_host, ftcluster_address] == ['192.0.2.2', '10.0.0.2']",
    }
    constructed = {
        "plugin": "ansible.builtin.constructed",
        "strict": True,
        "compose": page.get("compose") or page["hostvar_expressions"],
        "groups": (page.get("groups") or page["conditional_groups"]) | groups,
    }
    (tmp_path / "z.yml").write_text(yaml.safe_dump(constructed))
    paths = (tmp_path / "hosts.yml", tmp_path / "z.yml")
    found = read_inventory(paths, ["--extra-vars", "ftcluster_hosts=head:private:public"])
    assert found.cluster == ("x1", "x0", "x2")  # each of these groups has one host
