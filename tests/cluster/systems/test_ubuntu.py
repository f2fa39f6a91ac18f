"""The whole life of a cluster of Ubuntu hosts, whose stack does not use Ubuntu's own Python."""

import json
from pathlib import Path

import pytest

from tests.cluster.brought_python import brought_python
from tests.cluster.cluster import FEW_PAIRS, TWO
from tests.cluster.control import HEAD, OTHER, bare_hosts

PAIR = (HEAD, OTHER)
NAME = {"jammy": ["ubuntu", "22.04"], "noble": ["ubuntu", "24.04"]}


@pytest.mark.long
@pytest.mark.parametrize("suite", NAME)
def test_every_stage_a_training_and_teardown(suite: str, tmp_path: Path) -> None:
    with bare_hosts(suite, tmp_path, PAIR, python=brought_python(suite)) as control:
        inventory = control.inventory("inventory.ini", PAIR)
        before = control.snapshots()
        first = control.run("setup", inventory)
        assert first.returncode == 0, first.stderr
        again = control.run("setup", "--json")
        assert again.returncode == 0, again.stderr
        hosts = json.loads(again.stdout)["hosts"]
        assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(PAIR, 0)
        check = control.run("check", "--system-report", "report.json")
        assert check.returncode == 0, check.stdout + check.stderr
        systems = json.loads((tmp_path / "report.json").read_text())["hosts"]
        assert [host["system"]["os"][0].split()[:2] for host in systems] == [NAME[suite]] * 2
        trained = control.run("train", "quickstart", *FEW_PAIRS, *TWO, "--json")
        assert trained.returncode == 0, trained.stderr
        result = json.loads(trained.stdout)
        assert (result["state"], result["world_size"]) == ("done", 2)
        gone = control.run("teardown", inventory, "-e", "ftcluster_remove_runs=true")
        assert gone.returncode == 0, gone.stderr
        control.purge_packages()
        assert control.snapshots() == before
