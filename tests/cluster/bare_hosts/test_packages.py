"""Packages that several clusters on a host use, removed with the last of them."""

import json
import re
from typing import Any

from tests.cluster.control import OTHER, Control

RECORD = "/etc/ftcluster/packages"


def test_a_package_goes_with_its_last_user(bare: Control) -> None:
    inventory = bare.inventory("packages.ini", (OTHER,))
    before = bare.shell(OTHER, "dpkg-query -W; ls -A /etc")

    def step(entry: str, user: str, check: bool = False) -> dict[str, Any]:
        role = {"name": "ftcluster.cluster.os_package", "tasks_from": entry}
        own = {"os_package_names": ["tree"], "os_package_user": user}
        task = {"ansible.builtin.import_role": role, "vars": own}
        return {"hosts": "all", "gather_facts": False, "check_mode": check, "tasks": [task]}

    def play(*steps: dict[str, Any]) -> int:
        (bare.folder / "packages.yml").write_text(json.dumps(steps))
        done = bare.ansible("ansible-playbook", "-i", inventory, "packages.yml",
                            "-e", "ansible_pipelining=true")  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return int(re.findall(r"changed=(\d+)", done.stdout)[0])

    def record() -> list[str]:
        return bare.shell(OTHER, f"cat {RECORD}").splitlines()

    used = {name: f"tree is used by {name}" for name in ("/opt/a", "/opt/a+b")}
    play(step("main", "/opt/a"))
    assert record() == ["tree: tree", used["/opt/a"]]
    # the second one finds the package there
    assert play(step("use", "/opt/a+b", check=True), step("main", "/opt/a+b")) == 2
    assert record() == ["tree: tree", *used.values()]
    # what is there already, one that is not recorded, and one in check mode
    assert play(step("main", "/opt/a"), step("use", "/opt/a"), step("remove", "/opt/c"),
                step("remove", "/opt/a", check=True), step("remove", "/opt/a")) == 2  # fmt: skip
    assert record() == ["tree: tree", used["/opt/a+b"]]
    bare.shell(OTHER, f"sed -i /used/d {RECORD} && tree --version")  # as earlier versions wrote it
    assert play(step("remove", "/opt/a+b")) == 1
    assert bare.shell(OTHER, "dpkg-query -W; ls -A /etc") == before
