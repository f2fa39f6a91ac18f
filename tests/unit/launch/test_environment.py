"""The ranks' environment: the precedence of stages, and one place for it in the control node."""

import ast
from dataclasses import replace

import pytest

from ftcluster.errors import UsageError
from ftcluster.launch.environment import script_variables, shell_assignments, with_user_variables
from ftcluster.launch.mpirun import render
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.launch import mpirun_command, rank_placement
from ftcluster_train.rank.bind import find_place, variables
from ftcluster_train.supervisor.rank_environment import rank_environment
from tests.programs import ROOT
from tests.unit.clusters import STACKS, cluster, host

PLAN = plan(cluster(host("head"), host("node1")), load_recipe("quickstart"), STACKS)
LAUNCH = render(PLAN, "r-1")
# names that ftcluster_common uses to build variables
COMPOSES = {
    "MPI_VARIABLES", "head_variables", "mesh_variables", "slurm_variables", "network_variables",
    "HUB_TOKEN_FILE", "SECRET_ENV_FILE", "SECRET_ENV_VARIABLE", "PROVIDER_VARIABLE",
    "ACCELERATE_CPU_VARIABLE", "BACKEND_VARIABLE", "LAYER_VARIABLE", "RUN_VARIABLE",
}  # fmt: skip


def test_a_later_stage_overrides_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set one variable at each stage in turn, and call the functions of all stages."""
    name = "HF_HUB_OFFLINE"
    monkeypatch.setenv(name, "the head's own")
    assert rank_environment({}, "/stack")[name] == "the head's own"
    assert rank_environment({}, "/stack", {name: "sourced"})[name] == "sourced"
    users = replace(LAUNCH, env=with_user_variables(LAUNCH, {name: "the user's"}, (), ""))
    command = mpirun_command(users)
    assert rank_environment(command.env, "/stack", {name: "sourced"})[name] == "the user's"
    prepared = command.env | users.supervised_variables
    on_head = rank_environment(prepared, "/stack", {name: "sourced"})
    assert on_head[name] == "1"
    hosts = tuple(replace(one, env={**one.env, name: "the host's"}) for one in users.hosts)
    place = find_place(rank_placement(hosts, "/stack"), 0)
    assert (on_head | variables(place, 1))[name] == "the host's"
    fixed = replace(place, env={"RANK": "7"})
    assert variables(fixed, 1)["RANK"] == "0"


@pytest.mark.parametrize("name", sorted(LAUNCH.env))
def test_a_user_sets_nothing_that_the_launch_sets(name: str) -> None:
    with pytest.raises(UsageError, match=f"--env {name}: every launch sets this variable"):
        with_user_variables(LAUNCH, {name: "x"}, (), "")
    with pytest.raises(UsageError, match=f"--env {name}: every launch sets this variable"):
        with_user_variables(LAUNCH, {}, (name,), "")


def test_what_is_not_asked_for_is_not_set() -> None:
    assert with_user_variables(LAUNCH, {}, (), "") == LAUNCH.env
    least = script_variables(PLAN, "/run", hub_token=False, packages="", fast=False)
    most = script_variables(PLAN, "/run", hub_token=True, packages="/packages", fast=True)
    assert most.items() > least.items()
    assert most.keys() - least.keys() == {
        "HF_TOKEN_PATH", "HF_TOKEN", "FTCLUSTER_LAYER", "FTCLUSTER_FAST"
    }  # fmt: skip


def test_a_shell_gets_what_the_supervisor_gives_mpirun() -> None:
    first, *others = shell_assignments(LAUNCH, prepared=True)
    on_head = rank_environment({}, LAUNCH.stack).keys() & {"PATH", "MASTER_PORT"}
    assert {word.partition("=")[0] for word in first.split()} == on_head
    assert {word.partition("=")[0] for word in others} == {
        *mpirun_command(LAUNCH).env, *LAUNCH.supervised_variables
    }  # fmt: skip


def test_no_other_module_of_the_control_node_composes_it() -> None:
    wrong = set()
    for path in (ROOT / "runner").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ftcluster_common"):
                names = {alias.name for alias in node.names} & COMPOSES
                wrong |= {f"{path.relative_to(ROOT)}: {name}" for name in names}
    assert {one for one in wrong if "/launch/environment.py" not in one} == set()
