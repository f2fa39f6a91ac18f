"""The hosts that each playbook addresses, as Ansible lists them without connecting."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from ftcluster.ansible.inventory import pattern_of, read_inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent, run_playbook
from tests.programs import ROOT

PLAYBOOKS = ROOT / "playbooks"
# --limit selects the hosts of one run for them
OF_A_RUN = (
    "ask.yml", "attach.yml", "caches.yml", "clean.yml", "data.yml", "fetch.yml", "jobs.yml",
    "launch.yml", "logs.yml", "run.yml", "runs.yml", "stop.yml", "tidy.yml", "train.yml",
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
                pattern = "unseen" if name == "facts.yml" else "pattern"
                assert play["hosts"] == f"{{{{ cluster_{pattern} }}}}", name
                first = yaml.safe_load((PLAYBOOKS / name).read_text())[0]
                assert first["ansible.builtin.import_playbook"] in ("hosts.yml", "facts.yml"), name


def addressed(
    folder: Path, inventory: str, *options: str
) -> tuple[PlaybookOutcome, list[str], dict[str, Any]]:
    """Return how a play like setup's ends, its hosts, and what it knows of the cluster."""
    (folder / "inventory.ini").write_text(inventory)
    tasks = yaml.safe_load((PLAYBOOKS / "tasks/facts.yml").read_text())
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
    inventory = COMPANY + f"[head]\ndb1\nx1\nx2\n[{group}:vars]\nftcluster_hosts=racks\n"
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


def test_a_group_of_our_name_is_the_cluster_without_the_command_too(tmp_path: Path) -> None:
    outcome, hosts, told = addressed(tmp_path, COMPANY + "[ftcluster:children]\nracks\n")
    assert outcome.state == "done", outcome.output
    assert sorted(hosts) == sorted(told["cluster_hosts"]) == ["x1", "x2"]


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


# names with a meaning in a pattern, in a part of a pattern, or as a port
ODD = ("fd00::1", "2001:db8::2", "::3", "10.0.0.4", "x-1.rack_2", "1", "all_", "fe80::1%eth0")


def patterns_of_runs() -> set[str]:
    """Return the `hosts` of the plays about the hosts of one run."""
    plays = [play for name in OF_A_RUN for play in yaml.safe_load((PLAYBOOKS / name).read_text())]
    return {play["hosts"] for play in plays if "hosts" in play}


def test_a_run_is_launched_on_its_head_and_ended_on_the_others_whatever_their_names(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(json.dumps({"all": {"hosts": dict.fromkeys(ODD)}}))
    assert set(read_inventory([file]).cluster) == set(ODD)  # none of these names is refused
    known = InventoryManager(DataLoader(), [str(file)])

    def meant(pattern: str) -> set[str]:
        return {str(host) for host in known.list_hosts(pattern)}

    variable = "{{ train_head | default('all[0]') }}"
    written = patterns_of_runs()
    assert {"all", f"{variable},", f"all,!{variable}"} == written
    for head in (*ODD, "all[0]"):
        first = {ODD[0] if head == "all[0]" else head}
        assert meant(f"{variable},".replace(variable, head)) == first
        assert meant(f"all,!{variable}".replace(variable, head)) == {*ODD} - first


@pytest.mark.parametrize("names", [[name] for name in ODD] + [list(ODD[:2]), list(ODD)])
def test_limits_are_the_hosts_that_are_named(tmp_path: Path, names: list[str]) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(json.dumps({"all": {"hosts": dict.fromkeys(ODD)}}))
    known = InventoryManager(DataLoader(), [str(file)])
    for wanted, pattern in (
        ({*names}, pattern_of(names)),
        ({*ODD} - {*names}, pattern_of([f"!{name}" for name in names])),
    ):
        known.subset(pattern)
        assert {str(host) for host in known.list_hosts("all")} == wanted
