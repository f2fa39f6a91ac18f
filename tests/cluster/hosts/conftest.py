"""Three Debian 13 hosts, set up once for all tests of this folder."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.brought_python import brought_python
from tests.cluster.cluster import Cluster
from tests.cluster.control import ADDRESS, NAMES, OTHER, SECONDS, bare_hosts


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Check bare hosts and run a dry run, which change nothing, then set up the hosts."""
    python = brought_python("trixie")
    with bare_hosts("trixie", tmp_path_factory.mktemp("hosts"), python=python) as control:
        inventory = control.inventory("inventory.ini", NAMES)
        before = control.snapshots()
        dry = control.run("setup", inventory, "--check", "--diff")
        assert dry.returncode == 0, dry.stderr
        assert re.search(r"3 hosts checked, \d\d changes to make", dry.stdout), dry.stdout
        assert re.search("node0: changed: Install.*: nftables", dry.stderr), dry.stderr
        assert (
            "would create that key, known_hosts and ssh_config for node0, node1, node2"
            in dry.stderr
        )
        assert "node1-node2: would authorize the head's key" in dry.stderr
        report = tmp_path_factory.mktemp("report") / "systems.json"
        check = control.run("check", inventory, "--system-report", str(report))
        assert check.returncode == 1, check.stderr
        assert "node0, node1, node2: no stack is set up in /opt/ftcluster" in check.stdout
        assert control.snapshots() == before
        document = report.read_text()
        systems = [host["system"] for host in json.loads(document)["hosts"]]
        assert [system["os"][0].split()[:2] for system in systems] == [["debian", "13"]] * 3
        assert [system["uid"] for system in systems] == [["root"]] * 3
        assert "node0" not in document
        assert ADDRESS["node0"] not in document

        setup = control.start("setup", inventory)
        assert setup.stderr is not None
        for line in setup.stderr:
            # from this line on, the hosts need no access to other networks
            if line.startswith("stack:"):
                control.shell(OTHER, "ip route del default")
                break
        out, said = setup.communicate(timeout=SECONDS)
        assert setup.returncode == 0, said
        control.shell(OTHER, "ip route add default via 198.18.0.1")
        rows = out.splitlines()
        assert [row.split()[:3] for row in rows[1:4]] == [
            [name, name, address] for name, address in ADDRESS.items()
        ]
        assert "mpirun reached 3 hosts with the same" in rows[4]
        assert "an all-reduce over all ranks is correct" in rows[4]
        assert "the hosts' ports are closed to this machine, which is not one of the hosts" in out
        yield Cluster(control, inventory, before)
