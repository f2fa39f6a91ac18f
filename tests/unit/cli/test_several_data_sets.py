"""Commands with several data sets: --data repeated, or a list in the recipe."""

import json
from pathlib import Path

import pytest
import yaml

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.operations.plan.data import DataResult
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.events import is_data
from tests.unit.cli.test_data import REPORT
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Shell

WORDS = ["classify", "--model", "model", "--data", "a.csv", "--data", "b.csv"]
RECIPE = """
task: text-classification
model: model
data_mixing: equal
data:
  - a.csv
  - {path: b.csv, name: tickets, text_columns: body, label_column: team}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    write_weights(tmp_path / "model/model.safetensors", a=("F32", [2, 3]))
    (tmp_path / "a.csv").write_text("text,label\nso it is,1\nno,0\n")
    (tmp_path / "b.csv").write_text("text,label,body,team\nx,y,It is so.,1\nx,y,No.,0\nz,y,Or.,0\n")
    (tmp_path / "two.yml").write_text(RECIPE)


@pytest.fixture
def hosts() -> None:
    two = cluster(host("node0", cores=8), host("node1", cores=8))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=two))


def test_data_shows_each_data_set(shell: Shell) -> None:
    text = shell(["data", *WORDS, "--here"]).out
    assert "train_a: 2 rows, 2 classes (1 1, 0 1), columns: text (text), label (label)\n" in text
    assert "train_b: 3 rows, 1 class (y 3), columns: text (text), label (label); " in text
    assert "note: b: train: all rows have the same label" in text
    found = json.loads(shell(["data", "two.yml", "--here", "--json"]).out)
    assert found["data"] == [str(Path("a.csv").absolute()), str(Path("b.csv").absolute())]
    assert [(one["set"], one["rows"]) for one in found["sets"]] == [
        ("train_a", 2), ("train_tickets", 3)
    ]  # fmt: skip
    assert found["sets"][1]["columns"]["text"] == ["body"]


def test_the_report_of_the_head_names_the_data_set_of_a_sample() -> None:
    sets = [
        {**REPORT["sets"][0], "set": f"train_{name}", "columns": {"text": [f"{name}x"]}}
        for name in "ab"
    ]
    samples = [[{**REPORT["samples"][0][0], "set": f"train_{name}"}] for name in "ab"]
    report = {"columns": REPORT["columns"], "sets": sets, "samples": samples}
    assert is_data(report)
    assert not is_data({**report, "sets": [{**sets[0], "columns": {"text": [3]}}]})
    assert not is_data({**report, "samples": [[{**samples[0][0], "set": 3}]]})
    lines = DataResult(load_recipe("two.yml"), "node0", **report).lines()
    assert "  train_b: [CLS] so\\n«it is» -> good" in lines
    assert any(line.startswith("train_b: 3 rows") and "bx (text)" in line for line in lines)


@pytest.mark.usefixtures("hosts")
def test_plan_and_train_list_the_data_sets(shell: Shell) -> None:
    for command in (["plan"], ["train", "--dry-run"]):
        found = shell([*command, "two.yml", "--json"]).document
        assert [(one["name"], one["weight"]) for one in found["data_sets"]] == [
            ("a", None), ("tickets", None)
        ]  # fmt: skip
        assert found["data_sets"][1]["columns"]["label"] == ["team"]
        assert len(found["recipe"]["data"]) == 2
        text = shell([*command, "two.yml"]).out
        assert f"on {Path('a.csv').absolute()} and {Path('b.csv').absolute()}" in text
        assert "tickets: columns: body (text), team (label); not read: text, label" in text
    alone = shell(["plan", *WORDS[:5], "--json"]).document
    assert "data_sets" not in alone
    assert isinstance(alone["recipe"]["data"], str)


@pytest.mark.usefixtures("hosts")
def test_exports_and_sweeps_have_all_data_sets(shell: Shell) -> None:
    slurm = " ".join(shell(["export", "slurm", *WORDS]).out.replace("\\\n", " ").split())
    for name in ("a.csv", "b.csv"):
        assert f"--data {Path(name).absolute()}" in slurm
    k8s = [*yaml.safe_load_all(shell(["export", "k8s", "two.yml", "--image", "x"]).out)]
    [config] = [document for document in k8s if document["kind"] == "ConfigMap"]
    recipe = json.loads(config["data"]["job.json"])["recipe"]
    assert [one["name"] for one in recipe["data"]] == ["a", "tickets"]
    assert recipe["data_mixing"] == "equal"
    swept = ["sweep", *WORDS, "learning_rate=1e-5,2e-5", "--dry-run", "--json"]
    assert len(shell(swept).document["runs"]) == 2


@pytest.mark.usefixtures("hosts")
def test_predictions_read_one_data_set(shell: Shell) -> None:
    err = shell(["predict", *WORDS, "-o", "out.csv", "--dry-run"], 2).err
    assert "predict reads one data set, got 2" in err
    shell(["evaluate", *WORDS, "--dry-run"])
