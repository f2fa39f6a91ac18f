"""Sets drawn from one file have the guarantees of scikit-learn; test sets decide nothing."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from ftcluster_common.protocol.job import Job, read_job
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.data.splits import rows_of_fold, split_groups, split_rows, split_strata
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import run
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.forks import start
from tests.engine.jobs import read_events, result_of, run_rank
from tests.engine.runs import classes, make_whole_job, write_data, write_model
from tests.engine.test_resume import Killed, killed_at
from tests.programs import free_ports

TASK = "text-classification"
# scikit-learn's data about wines, and its own split of them
SKLEARN = """
import json
from collections import Counter
from sklearn.datasets import load_wine
from sklearn.model_selection import GroupKFold, StratifiedKFold, StratifiedShuffleSplit
wines = load_wine().target.tolist()
split = StratifiedShuffleSplit(1, test_size=25, random_state=0)
[(_, test)] = split.split(wines, wines)
groups = [n * n % 61 for n in range(len(wines))]
strata = [[*Counter(wines[n] for n in test).items()]
          for _, test in StratifiedKFold(7).split(wines, wines)]
sizes = [len(test) for _, test in GroupKFold(7).split(wines, wines, groups)]
print(json.dumps([wines, Counter(wines[n] for n in test), groups, strata, sizes]))
"""


@pytest.fixture(scope="module")
def wines() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SKLEARN], env={"PYTHONPATH": COMPARED}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_strata_have_the_proportions_of_scikit_learn(wines: Any) -> None:
    rows, theirs, *_ = wines
    for seed in range(5):
        sets = split_strata(rows, {"test": 25, "validation": 18}, seed, "class")
        assert {name: len(numbers) for name, numbers in sets.items()} == {
            "test": 25, "validation": 18,
        }  # fmt: skip
        assert not sets["test"] & sets["validation"]
        counts = Counter(rows[number] for number in sets["test"])
        assert all(abs(counts[int(name)] - count) <= 1 for name, count in theirs.items())
        for numbers in sets.values():
            drawn = Counter(rows[number] for number in numbers)
            for name, count in Counter(rows).items():
                assert abs(drawn[name] - len(numbers) * count / len(rows)) < 1
        assert sets == split_strata(rows, {"test": 25, "validation": 18}, seed, "class")
    with pytest.raises(TrainError, match=r"too few rows of rare \(2\).* need 3 rows of each value"):
        split_strata([*rows, "rare", "rare"], {"test": 25, "validation": 18}, 0, "class")
    sets = split_strata([*rows, "rare"], {"test": 25, "validation": 18}, 0)  # nobody asked for it
    assert all(len(rows) not in numbers for numbers in sets.values())


def test_no_group_is_in_two_sets(wines: Any) -> None:
    groups = [*map(str, wines[2])]
    for seed in range(5):
        sets, _ = split_groups(groups, {"test": 20, "validation": 20}, seed, "vineyard")
        train = {*range(len(groups))}.difference(*sets.values())
        values = [{groups[n] for n in numbers} for numbers in (train, *sets.values())]
        assert sum(map(len, values)) == len({*groups})
        assert all(10 <= len(numbers) <= 20 for numbers in sets.values())
        assert split_groups(groups, {"test": 20, "validation": 20}, seed, "vineyard")[0] == sets
    large = ["a"] * 50 + ["b"] * 3 + ["c"] * 2
    sets, notices = split_groups(large, {"test": 4}, 0, "vineyard")
    assert {large[n] for n in sets["test"]} < {"b", "c"}
    assert any(
        "more rows than the 4 that this set should have: a (50 rows)" in notice
        for notice in notices
    )
    with pytest.raises(TrainError, match="2 different values"):
        split_groups(["a", "b"] * 20, {"test": 4, "validation": 4}, 0, "vineyard")


def test_folds_are_those_of_scikit_learn(wines: Any) -> None:
    rows, _, groups, strata, sizes = wines
    every = [rows_of_fold(rows, False, 7, fold, 5, "class") for fold in range(1, 8)]
    assert sorted(number for numbers in every for number in numbers) == [*range(len(rows))]
    counts = [Counter(rows[number] for number in numbers) for numbers in every]
    assert counts == [Counter(dict(pairs)) for pairs in strata]
    for seed in range(3):
        every = [rows_of_fold(groups, True, 7, fold, seed, "vineyard") for fold in range(1, 8)]
        assert sorted(number for numbers in every for number in numbers) == [*range(len(rows))]
        in_folds = [{groups[number] for number in numbers} for numbers in every]
        assert sum(map(len, in_folds)) == len({*groups})  # no group is in two folds
        assert sorted(map(len, every)) == sorted(sizes)
    with pytest.raises(TrainError, match=r"need at least 3 groups; .* 2 in column vineyard"):
        rows_of_fold(["a", "b"] * 9, True, 3, 1, 0, "vineyard")


def test_each_row_is_validated_in_one_fold_or_tested(tmp_path: Path) -> None:
    rows = [{**row, "author": n % 23} for n, row in enumerate(classes(90, 3))]
    fields = {"test_split_rows": 9, "group_column": "author", "folds": 4}
    validated: list[str] = []
    for fold in (1, 2, 3, 4):
        inputs = prepare(job_of(tmp_path / f"{fold}", {"train": rows}, {**fields, "fold": fold}))
        folder = Path(inputs.samples)
        tested, drawn = (
            [place.rpartition(":")[2] for place in json.loads((folder / name).read_text())["rows"]]
            for name in ("test_rows.json", "validation_rows.json")
        )
        assert sizes_of(inputs) == {
            "train": 90 - len(tested) - len(drawn), "validation": len(drawn), "test": len(tested),
        }  # fmt: skip
        assert f"validation: fold {fold} of 4" in inputs.notices
        validated += drawn
    authors = Counter(rows[int(place) - 1]["author"] for place in validated)
    assert sorted(map(int, [*validated, *tested])) == [*range(1, 91)]
    assert not {rows[int(place) - 1]["author"] for place in tested} & authors.keys()
    sets = {"train": rows[:60], "validation": rows[60:]}
    with pytest.raises(TrainError, match="the data have a validation set"):
        prepare(job_of(tmp_path / "own", sets, {"folds": 4, "fold": 1}))


def test_rows_are_drawn_once() -> None:
    sets = split_rows(40, {"test": 5, "validation": 7}, 1)
    assert [len(numbers) for numbers in sets.values()] == [5, 7]
    assert not sets["test"] & sets["validation"]
    with pytest.raises(TrainError, match="no row stays for training"):
        split_rows(12, {"test": 5, "validation": 7}, 1)


def job_of(folder: Path, sets: Any, recipe: Any, **training: Any) -> Any:
    data = write_data(folder / "data", sets)
    model = write_model(folder / "bert", "bert", TASK)
    return make_whole_job(folder / "train", TASK, data, model, None, recipe, **training)


def sizes_of(inputs: Any) -> dict[str, int]:
    folders = [path for path in Path(inputs.samples).iterdir() if path.is_dir()]
    return {folder.name: len(Samples(folder)) for folder in folders}


@pytest.mark.usefixtures("one_world")
def test_the_test_set_is_measured_once_at_the_end(tmp_path: Path) -> None:
    fields = {"test_split_rows": 12, "validation_split_rows": 8}
    training = {
        "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch",
        "load_best_model_at_end": True,
    }  # fmt: skip
    job = job_of(tmp_path, {"train": classes(60, 3)}, fields, **training)
    events = run_rank(job)
    [result] = [event for event in events if event["event"] == "result"]
    evaluations = [event for event in events if event["event"] == "evaluation"]
    assert len(evaluations) == 2
    assert not any(name.startswith("test") for e in evaluations for name in e["metrics"])
    assert {"loss", "test_loss", "accuracy", "test_accuracy"} <= result["metrics"].keys()
    lists = [
        json.loads((job.run_dir / f"{name}_rows.json").read_text())["rows"]
        for name in ("test", "validation")
    ]
    assert [len({*rows}) for rows in lists] == [12, 8]
    assert not {*lists[0]} & {*lists[1]}
    card = ModelCard.load(job.run_dir / "model" / "README.md")
    assert f"| test_accuracy | {result['metrics']['test_accuracy']:.6g} |" in card.content
    of_tests = [one for one in card.data.eval_results or () if one.dataset_split == "test"]
    assert {one.metric_name: one.metric_type for one in of_tests} == {
        "test_accuracy": "accuracy", "test_f1_macro": "f1_macro", "test_loss": "loss",
    }  # fmt: skip
    assert "The classes of test, 12 rows:" in card.content
    # the saved model, evaluated on the same rows by `ftcluster evaluate`'s code
    rows = classes(60, 3)
    chosen = [rows[int(place.rpartition(":")[2]) - 1] for place in lists[0]]
    data = write_data(tmp_path / "again", {"test": chosen})
    again = make_whole_job(tmp_path / "evaluate", TASK, data, str(job.run_dir / "model"))
    measured = result_of(replace(again, purpose="evaluate"))["metrics"]
    assert measured["accuracy"] == pytest.approx(result["metrics"]["test_accuracy"])
    assert measured["loss"] == pytest.approx(result["metrics"]["test_loss"], rel=1e-3)


def test_groups_of_a_recipe(tmp_path: Path) -> None:
    rows = [{**row, "author": n % 13} for n, row in enumerate(classes(80, 4))]
    fields = {"test_split_percentage": 10.0, "group_column": "author"}
    inputs = prepare(job_of(tmp_path / "a", {"train": rows}, fields))
    sizes = sizes_of(inputs)
    assert sum(sizes.values()) == 80
    assert sizes.keys() == {"train", "validation", "test"}
    parts = {"train": rows[:60], "validation": rows[60:]}
    with pytest.raises(TrainError, match=r"the group .* author is in train and in validation"):
        prepare(job_of(tmp_path / "b", parts, {"group_column": "author"}))
    with pytest.raises(TrainError, match="no column writer; the data have text, label, author"):
        prepare(job_of(tmp_path / "c", {"train": rows}, {"group_column": "writer"}))


def test_a_file_for_the_test_set_is_used_if_asked_for(tmp_path: Path) -> None:
    sets = {"train": classes(40, 1), "test": classes(9, 2)}
    asked = prepare(job_of(tmp_path / "a", sets, {"test_split_rows": 3}))
    assert len(Samples(Path(asked.samples) / "test")) == 9
    plain = prepare(job_of(tmp_path / "b", sets, {}))
    assert not (Path(plain.samples) / "test").exists()


def test_the_last_release_reads_a_job_without_these_fields(tmp_path: Path) -> None:
    job = make_whole_job(tmp_path / "run", TASK, "d", "m", None, {"group_column": "author"})
    plain = make_whole_job(tmp_path / "run", TASK, "d", "m")
    new = {"validation_split_rows", "test_split_percentage", "test_split_rows", "stratify_column"}
    assert not (new | {"group_column"}) & plain.to_dict()["recipe"].keys()
    assert not new & job.to_dict()["recipe"].keys()
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "job.json").write_text(json.dumps(job.to_dict()))
    assert read_job(tmp_path / "run").recipe.group_column == "author"


def test_blocks_of_texts_are_taken_from_the_end(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"train": classes(80, 5)})
    model = write_model(tmp_path / "gpt2", "gpt2", "causal-lm", head=True)
    fields = {"test_split_percentage": 25.0}
    job = make_whole_job(tmp_path / "train", "causal-lm", data, model, None, fields)
    inputs = prepare(job)
    sizes = sizes_of(inputs)
    assert sizes["test"] == round((sizes["train"] + sizes["test"]) * 0.25)
    assert sizes["validation"] == round(sum(sizes.values()) * 0.1)


def _rank(rank: int, jobs: Sequence[Job], ports: Sequence[int], size: int) -> None:
    torch.set_num_threads(1)
    for job, port in zip(jobs, ports, strict=True):
        os.environ |= {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MASTER_PORT": str(port)}
        run(job)


BEST = {
    "num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "epoch",
    "load_best_model_at_end": True,
}  # fmt: skip
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # changes of the training, of the job
    "last": ({"num_train_epochs": 1}, {}),
    "best": (BEST, {}),
    "best of shards": (BEST, {"shard_optimizer": True}),
    "last of shards": ({"num_train_epochs": 1}, {"shard_optimizer": True, "precision": "bf16"}),
}


@pytest.mark.usefixtures("one_world")
def test_two_ranks_measure_what_the_saved_model_does(tmp_path: Path) -> None:
    """Each host makes its sets from its copy of the file, and the ranks compare them."""
    rows = [{**row, "author": n % 23} for n, row in enumerate(classes(80, 3))]
    fields = {"test_split_rows": 14, "group_column": "author"}
    jobs = [
        replace(job_of(tmp_path / name, {"train": rows}, fields, **training), **way)
        for name, (training, way) in WAYS.items()
    ]
    for job in jobs:
        job.run_dir.mkdir(parents=True, exist_ok=True)
        write_inputs(job.run_dir, prepare(job))
    start(_rank, 2, jobs, free_ports(len(jobs)), 2)
    lists = [json.loads((job.run_dir / "test_rows.json").read_text())["rows"] for job in jobs]
    assert lists == lists[:1] * len(jobs)
    chosen = [rows[int(place.rpartition(":")[2]) - 1] for place in lists[0]]
    data = write_data(tmp_path / "again", {"test": chosen})
    for job in jobs:
        result, model = read_events(job)[-1], str(job.run_dir / "model")
        again = make_whole_job(job.prefix / "again", TASK, data, model)
        measured = result_of(replace(again, purpose="evaluate"))["metrics"]
        rel = 2e-2 if job.precision == "bf16" else 1e-4
        assert result["metrics"]["test_loss"] == pytest.approx(measured["loss"], rel=rel)


@pytest.mark.usefixtures("one_world")
def test_a_resumed_run_has_the_same_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    jobs = [
        job_of(tmp_path / name, {"train": classes(60, 3)}, {"test_split_rows": 12}, **training)
        for name in ("whole", "killed")
    ]
    whole = run_rank(jobs[0])[-1]
    with monkeypatch.context() as patch:
        killed_at(patch, 6)
        with pytest.raises(Killed):
            run_rank(jobs[1])
    events = run_rank(jobs[1])
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert events[-1]["metrics"] == whole["metrics"]
    assert "test_loss" in whole["metrics"]


def test_fields_without_effect_are_named(tmp_path: Path) -> None:
    sets = {"train": classes(40, 1), "validation": classes(9, 2), "test": classes(9, 3)}
    inputs = prepare(job_of(tmp_path, sets, {"test_split_rows": 3, "stratify_column": "label"}))
    [notice] = [notice for notice in inputs.notices if "without effect" in notice]
    assert notice.startswith("test_split_rows, stratify_column: ")
    assert sizes_of(inputs) == {"train": 40, "validation": 9, "test": 9}
