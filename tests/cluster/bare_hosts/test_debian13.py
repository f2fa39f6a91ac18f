"""The stages that need no torch, on two Debian 13 hosts.

The stages stack and verify are left out: for its Python 3.13, pip finds torch here only as the
build with gigabytes of CUDA packages.
"""

import json

from tests.cluster.hosts.control import OpenControl

NAMES = ("node0", "node1")
STAGES = ("--tags", "preflight,system,mesh")


def test_a_bare_host_becomes_one_of_a_mesh_and_bare_again(open_control: OpenControl) -> None:
    with open_control("trixie", len(NAMES)) as control:
        bed = control.bed
        inventory = control.inventory("inventory.ini", NAMES)
        before = {name: control.snapshot(name) for name in NAMES}
        done = control.run("setup", inventory, *STAGES)
        assert done.returncode == 0, done.stderr
        again = control.run("setup", inventory, *STAGES, "--json")
        hosts = json.loads(again.stdout)["hosts"]
        assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(NAMES, 0)

        packages = bed.exec_("node1", "dpkg-query", "-W", check=True).stdout
        assert "libtcmalloc-minimal4t64" in packages
        assert "table inet ftcluster" in bed.exec_("node1", "nft", "list", "ruleset").stdout
        reach = "ssh -F /opt/ftcluster/mesh/ssh_config node1 hostname"
        assert control.as_ranks("node0", reach).stdout.strip() == "node1"

        gone = control.run("teardown", inventory)
        assert gone.returncode == 0, gone.stderr
        assert {name: control.snapshot(name) for name in NAMES} == before
