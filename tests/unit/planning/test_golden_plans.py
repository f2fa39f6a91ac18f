"""Plans of clusters that do not exist; golden/README.md says how to renew them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.launch.mpirun import as_shell, render
from ftcluster.launch.preview import reasons, table
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster_common.protocol.cpu_list import parse_cpus
from tests.unit.clusters import STACKS

FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))
RENEW = os.environ.get("FTCLUSTER_RENEW_GOLDEN") == "1"


def planned(golden: dict[str, Any]) -> LaunchPlan:
    return plan(
        ClusterFacts.from_dict(golden["facts"]),
        parse_recipe(yaml.safe_dump(golden["recipe"]), "golden.yml"),
        STACKS,
        golden["ranks_per_host"],
        ModelSize(**golden["model"]) if golden["model"] else None,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_plan_is_the_golden_one(path: Path) -> None:
    golden = json.loads(path.read_text())
    decided = planned(golden)
    command = as_shell(render(decided, "golden-1"), decided).splitlines()
    found = [*table(decided), "", *map(str, reasons(decided)), "", *command]
    if RENEW:
        path.write_text(json.dumps({**golden, "plan": found}, indent=1) + "\n")
    assert found == golden["plan"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_holds_for_every_plan(path: Path) -> None:
    golden = json.loads(path.read_text())
    decided = planned(golden)
    facts = {host.name: host for host in ClusterFacts.from_dict(golden["facts"]).hosts}
    for host in decided.hosts:
        usable = {cpu for node in facts[host.name].numa for cpu in parse_cpus(node.cpus)}
        cpus = [parse_cpus(rank.cpus) for rank in host.placement]
        assert usable.issuperset(cpu for own in cpus for cpu in own)
        assert sum(rank.threads for rank in host.placement) <= facts[host.name].cores
        if facts[host.name].cpu_quota is None:
            assert len({cpu for own in cpus for cpu in own}) == sum(map(len, cpus))
        assert all(
            0 < rank.threads <= len(own) for rank, own in zip(host.placement, cpus, strict=True)
        )
    samples = sum(rank.samples for host in decided.hosts for rank in host.placement)
    assert samples == golden["recipe"]["batch_size"]
    assert all(one.why for one in decided.decisions)
