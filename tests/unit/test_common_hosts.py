"""Hosts for plans before a purchase, compared with dumps of such machines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.operations.plan.common_hosts import HOSTS, common_hosts
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import load_recipe
from tests.unit.clusters import STACKS, cluster
from tests.unit.machines.test_machines import LIBRARY
from tests.unit.shell import Shell

DUMPS = {"2x6980P": "granite-rapids-6980p-snc3", "c7i.metal-48xl": "sapphire-rapids-8488c-metal"}


@pytest.mark.parametrize("name", DUMPS)
def test_they_are_as_people_have_seen_them(name: str) -> None:
    seen = LIBRARY[DUMPS[name]].facts()
    made = common_hosts(name)
    assert made
    ours = made.head
    for fact in ("cpu_model", "cores", "threads", "sockets", "memory_bytes"):
        assert getattr(ours, fact) == getattr(seen, fact), fact
    for one, other in zip(ours.numa, seen.numa, strict=True):
        assert one == replace(other, distances=(), near=one.near)
    recipe = load_recipe("mrpc")
    placed = [plan(facts, recipe, STACKS).hosts[0].placement for facts in (made, cluster(seen))]
    assert placed[0] == placed[1]


@pytest.mark.parametrize("name", [*HOSTS, "4xm6i.16xlarge", "2x2x8480+"])
def test_a_plan_for_them(name: str, tmp_path: Path, shell: Shell) -> None:
    found = shell(f"plan classify --json --facts {name}").document
    (tmp_path / "plan.json").write_text(json.dumps(found))
    again = shell(f"plan classify --json --facts {tmp_path}/plan.json").document
    assert (again["hosts"], again["facts"]) == (found["hosts"], found["facts"])
    count = {"4xm6i.16xlarge": 4, "2x2x8480+": 2}.get(name, 1)
    assert len(found["hosts"]) == count
    decided = {one["what"]: one["value"] for one in found["decisions"]}
    assert decided["precision"] == ("fp32" if "m6i" in name else "bf16")


def test_others_are_named(shell: Shell) -> None:
    said = shell("plan classify --facts 3x9999", 1).err
    assert "c7i.metal-24xl" in said
    assert common_hosts("0xm7i.16xlarge") is None
