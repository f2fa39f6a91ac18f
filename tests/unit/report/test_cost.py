"""The time and cost of an epoch, computed from trainings with known times."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.cluster.price import Price, price_of
from ftcluster.launch.record import begin_events, begin_record, events_file
from ftcluster.operations.plan.common_hosts import common_hosts
from ftcluster.paths import state_dir
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import load_recipe
from ftcluster.report.epoch_time import RATES, PastRun, epoch_time, past_run, past_runs
from ftcluster.report.history import history_of
from tests.unit.clusters import STACKS, cluster, host
from tests.unit.report.runs import BATCH, STEPS, events
from tests.unit.shell import Said, Shell

RECIPE = load_recipe("mrpc", [f"batch_size={BATCH}"])
STEP = 0.12  # seconds of the invented events
MEASURED = STEPS * STEP  # seconds of an epoch


def hosts(count: int, cores: int = 8, **changes: Any) -> ClusterFacts:
    """Return hosts with two ranks each, which use half of the cores."""
    return cluster(
        *(host(f"node{n}", cores=cores, numa_nodes=2, **changes) for n in range(1, count + 1))
    )


def fields(**changes: Any) -> Any:
    return json.loads(json.dumps(asdict(replace(RECIPE, **changes))))


def record(facts: ClusterFacts, **changes: Any) -> dict[str, Any]:
    """Return a record as a launch writes it."""
    planned = json.loads(json.dumps(asdict(plan(facts, RECIPE, STACKS))))
    known = {"kind": "train", "facts": facts.to_dict()["hosts"], "plan": planned}
    return {**known, "recipe": fields(**changes)}


def past(facts: ClusterFacts) -> PastRun:
    found = past_run("mrpc-1", record(facts), history_of(events(len(facts.hosts))))
    assert found
    return found


def seconds(facts: ClusterFacts, *runs: PastRun, **changes: Any) -> tuple[float | None, str]:
    found = epoch_time(plan(facts, RECIPE, STACKS), RECIPE, fields(**changes), facts.hosts, runs)
    return found.seconds, found.source


def test_a_training_of_the_recipe_on_the_same_ranks_was_measured() -> None:
    assert seconds(hosts(2), past(hosts(2))) == (pytest.approx(MEASURED), "measured")


def write_rates(rates: dict[str, dict[str, float]]) -> None:
    state_dir().mkdir(parents=True, exist_ok=True)
    (state_dir() / RATES).write_text(json.dumps(rates))


@pytest.mark.parametrize(
    ("facts", "times"),
    [
        (hosts(4), 0.5),
        (hosts(2, cores=4), 2.0),
        # three ranks with equal threads; the rank with 22 of 64 samples is the slowest
        (cluster(hosts(2).hosts[0], hosts(2, cores=4).hosts[1]), 22 / 16),
    ],
)
def test_on_other_hosts_it_is_estimated_by_the_products(facts: ClusterFacts, times: float) -> None:
    """The past run's matmuls could be twice as fast, so half of their speed is expected."""
    found = seconds(facts, past(hosts(2)))
    assert found == (pytest.approx(times * MEASURED), "estimated")


def test_the_rate_of_another_cpu_comes_from_any_training_on_it() -> None:
    other = hosts(2, cpu_model="Xeon 6248", cpu_generation="Cascade Lake")
    unknown = epoch_time(
        plan(other, RECIPE, STACKS), RECIPE, fields(), other.hosts, [past(hosts(2))]
    )
    assert unknown.seconds == pytest.approx(MEASURED)
    assert "Xeon 6248 was not measured and counts as the median" in unknown.why
    rate = past(hosts(2)).gflops
    elsewhere = replace(
        past(other), recipe=fields(model="gpt2"), gflops=tuple(one / 4 for one in rate)
    )
    found = seconds(other, past(hosts(2)), elsewhere)
    assert found == (pytest.approx(4 * MEASURED), "estimated")


@pytest.mark.parametrize(
    "changes", [{"model": "gpt2"}, {"data": "/d/other"}, {"task": "causal-lm"}]
)
def test_a_training_of_another_recipe_says_nothing(changes: dict[str, Any]) -> None:
    assert seconds(hosts(2), past(hosts(2)), **changes) == (None, "")


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    # by hand: 6 operations for each of 85.5e6 weights and 53.9 tokens, 3,668 times; 32 cores with
    # 125 GFLOP/s at 71 %, or with AMX 515 at 46 %; one core may be reserved for communication
    [("m6i.16xlarge", 35, 37), ("m7i.16xlarge", 13, 14)],
)
def test_before_anything_ran_what_is_shipped_stands_in(
    kind: str, least: float, most: float
) -> None:
    facts = common_hosts(kind)
    assert facts
    found = epoch_time(plan(facts, RECIPE, STACKS), RECIPE, fields(), facts.hosts, [])
    assert found.source == "guessed"
    assert least < (found.seconds or 0) < most
    assert f": {found.seconds / 2.7:.3g} to {2.7 * found.seconds:.3g} seconds;" in found.why  # type: ignore[operator]
    assert "counts as a CPU of its generation" in found.why
    assert seconds(hosts(2, cpu_model="EPYC", cpu_generation="other")) == (None, "")
    # a training on such a CPU is better evidence than the table
    write_rates({facts.hosts[0].cpu_model: {"fp32": 250, "bf16": 1030}})
    again = epoch_time(plan(facts, RECIPE, STACKS), RECIPE, fields(), facts.hosts, [])
    assert again.seconds == pytest.approx((found.seconds or 0) / 2)
    # other data, or no knowledge about such CPUs
    assert (
        epoch_time(
            plan(facts, RECIPE, STACKS), RECIPE, fields(data="/d/mine"), facts.hosts, []
        ).source
        == ""
    )


def test_folders_are_the_same_in_clusters_with_other_prefixes() -> None:
    there = replace(
        past(hosts(2)), recipe={**fields(model="/opt/ft/models/mine-1"), "batch_size": BATCH}
    )
    assert seconds(hosts(2), there, model="/srv/models/mine-1")[1] == "measured"


def test_prices_of_hosts() -> None:
    assert price_of([("a", "4.08 USD"), ("b", "2 USD")]) == (Price(6.08, "USD"), "")
    assert price_of([("a", ""), ("b", "")]) == (None, "")
    for one, other, word in (("1", "", "b"), ("1 USD", "1 EUR", "EUR"), ("x", "1", "'x'")):
        price, why = price_of([("a", one), ("b", other)])
        assert price is None
        assert word in why


# --- the records of this control node, and what plan says


@pytest.fixture
def recorded() -> None:
    """Record a training on two hosts, a damaged record, and a record of another version."""
    for run, known in {"mrpc-1": record(hosts(2)), "old-1": {"kind": "train"}}.items():
        begin_record(run, known)
        begin_events(run)
        events_file(run).write_text("".join(f"{json.dumps(one)}\n" for one in events(2)))
    begin_events("damaged-1")
    (events_file("damaged-1").parent / "run.json").write_text("{")


def write_facts(folder: Path, **shapes: ClusterFacts) -> list[str]:
    """Write files of facts; return them as options of `plan`."""
    for name, facts in shapes.items():
        (folder / f"{name}.json").write_text(json.dumps(facts.to_dict()))
    return [word for name in shapes for word in ("--facts", f"{name}.json")]


@pytest.mark.usefixtures("recorded")
def test_the_runs_of_this_control_node() -> None:
    [run] = past_runs()
    assert (run.run, run.recipe["batch_size"]) == ("mrpc-1", BATCH)
    assert run.samples_per_second == pytest.approx(BATCH / STEP)
    assert run.limit_share == pytest.approx(0.5)


@pytest.mark.usefixtures("recorded")
def test_plan_compares_clusters_by_time_and_by_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    dear = write_facts(
        tmp_path,
        two=hosts(2, price_per_hour="4.08 USD"),
        four=hosts(4, price_per_hour="7 USD"),
        other=hosts(
            1, cpu_model="Xeon 6248", cpu_generation="Cascade Lake", price_per_hour="1 USD"
        ),
        free=hosts(2, cores=4),
    )
    words = ["plan", "mrpc", f"batch_size={BATCH}", *dear]
    said(shell(words).out.replace(str(tmp_path), "FOLDER"))
    shapes = shell([*words, "--json"]).document["shapes"]
    found = {one["facts"]: (one["epoch"]["seconds"], one["epoch"]["cost"]) for one in shapes}
    assert found == {
        "two.json": (MEASURED, pytest.approx(2 * 4.08 * MEASURED / 3600, rel=1e-3)),
        "four.json": (MEASURED / 2, pytest.approx(4 * 7 * MEASURED / 2 / 3600, rel=1e-3)),
        "other.json": (2 * MEASURED, pytest.approx(2 * MEASURED / 3600, rel=1e-3)),
        "free.json": (2 * MEASURED, None),
    }
    said(
        "\n".join(
            line for line in shell([*words[:3], *dear[:2]]).out.splitlines() if "an epoch" in line
        )
    )


def test_all_files_that_cannot_be_compared_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    good = hosts(2)
    wrong: tuple[HostFacts, ...] = (replace(good.hosts[0], price_per_hour="dear"),)
    words = write_facts(tmp_path, good=good, wrong=ClusterFacts(wrong))
    said = shell(["plan", "mrpc", *words, "--facts", "missing.json"], 1).err
    assert "missing.json cannot be read" in said
    assert "node1: 'dear' is not a price" in said
    assert main(["plan", "mrpc", *words, "--commands"]) == 2
