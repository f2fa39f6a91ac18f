"""Which hosts the playbooks address, as Ansible itself says without connecting to any."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.ansible.playbook import Outcome, TaskEvent, run_playbook
from tests.programs import ROOT

PLAYBOOKS = ROOT / "playbooks"
# they are given the hosts of one run by --limit
OF_A_RUN = (
    "ask.yml", "attach.yml", "clean.yml", "fetch.yml", "jobs.yml", "launch.yml", "logs.yml",
    "run.yml", "runs.yml", "stop.yml", "tidy.yml", "train.yml",
)  # fmt: skip
COMPANY = """
[databases]
db1
[web]
web1
[racks:children]
rack2
rack1
[rack2]
x2
[rack1]
x1
"""


def test_every_play_addresses_the_cluster_alone() -> None:
    found = {
        path.name: [play for play in yaml.safe_load(path.read_text()) if "hosts" in play]
        for path in PLAYBOOKS.glob("*.yml")
        if path.name not in OF_A_RUN
    }
    assert len([play for plays in found.values() for play in plays]) > 8
    for name, plays in found.items():
        for play in plays:
            if name == "hosts.yml":
                assert play.keys() == {"name", "hosts", "gather_facts"}
            elif name == "host_keys.yml":
                assert play["hosts"] == "{{ host_keys_hosts | default('all') }}"
            else:
                pattern = "unseen" if name == "look.yml" else "pattern"
                assert play["hosts"] == f"{{{{ cluster_{pattern} }}}}", name
                first = yaml.safe_load((PLAYBOOKS / name).read_text())[0]
                assert first["ansible.builtin.import_playbook"] in ("hosts.yml", "look.yml"), name


def addressed(
    folder: Path, inventory: str, *options: str
) -> tuple[Outcome, list[str], dict[str, Any]]:
    """How a play like those of setup ends, whom it addresses, and what it knows of the cluster."""
    (folder / "inventory.ini").write_text(inventory)
    tasks = yaml.safe_load((PLAYBOOKS / "tasks/look.yml").read_text())
    tell = next(task for task in tasks if "ansible.builtin.set_fact" in task)
    play = {
        "name": "Addressed",
        "hosts": "{{ cluster_pattern }}",
        "gather_facts": False,
        "vars_files": [str(PLAYBOOKS / "vars/cluster.yml")],
        "tasks": [tell, {"name": "Here", "ansible.builtin.debug": {"msg": "here"}}],
    }
    first = {"name": "Hosts", "import_playbook": str(PLAYBOOKS / "hosts.yml")}
    (folder / "playbook.yml").write_text(json.dumps([first, play]))
    events: list[TaskEvent] = []
    outcome = run_playbook(
        str(folder / "playbook.yml"), (folder / "inventory.ini",), {}, events.append,
        options=options, time_limit_seconds=100,
    )  # fmt: skip
    told = {
        key: value
        for event in events
        for key, value in event.result.get("ansible_facts", {}).items()
    }
    return outcome, [event.host for event in events if event.message == "here"], told


@pytest.mark.parametrize("group", ["all", "racks"])
def test_the_inventory_says_which(tmp_path: Path, group: str) -> None:
    inventory = COMPANY + f"[head]\ndb1\nx1\n[{group}:vars]\nftcluster_hosts=racks\n"
    outcome, hosts, told = addressed(tmp_path, inventory)
    assert outcome.state == "done", outcome.output
    assert sorted(hosts) == ["x1", "x2"]
    assert told == {"cluster_head": "x1", "cluster_hosts": ["x1", "x2"]}


def test_an_option_goes_before_it_and_a_limit_leaves_the_cluster_whole(tmp_path: Path) -> None:
    inventory = COMPANY + "[all:vars]\nftcluster_hosts=web\n"
    outcome, hosts, told = addressed(
        tmp_path, inventory, "--extra-vars", "ftcluster_hosts=racks,db1", "--limit", "x1"
    )
    assert outcome.state == "done", outcome.output
    assert hosts == ["x1"]
    assert told == {"cluster_head": "db1", "cluster_hosts": ["db1", "x2", "x1"]}


@pytest.mark.parametrize(
    "variables",
    [
        "[all:vars]\nftcluster_hosts=xenos\n",
        "[web:vars]\nftcluster_hosts=web\n[racks:vars]\nftcluster_hosts=racks\n",
    ],
)
def test_what_is_not_one_pattern_that_names_hosts_ends_it(tmp_path: Path, variables: str) -> None:
    outcome, hosts, _ = addressed(tmp_path, COMPANY + variables)
    assert (outcome.state, hosts) == ("failed", [])
    assert "ftcluster_hosts is " in outcome.output
