"""Trainings on several data sets."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.data_sets import DataSet, with_names
from ftcluster_common.protocol.job import Job, recipe_of
from ftcluster_train.engine import rank as rank_module
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from tests.engine.forks import start
from tests.engine.jobs import read_events, run_rank
from tests.engine.runs import Row, make_whole_job, triplets, write_data, write_model
from tests.engine.test_run_on_ranks import KINDS, Kind, job_of
from tests.programs import free_ports

Events = list[dict[str, Any]]
# kinds whose samples do not depend on the rows beside them in a file
ALONE = ("classes", "several classes", "numbers", "tags", "answers", "summaries", "preferences")


def mixed(job: Job, data_sets: Sequence[DataSet], **recipe: Any) -> Job:
    return replace(job, recipe=replace(job.recipe, data=with_names(data_sets), **recipe))


def fields(events: Events, event: str, field: str) -> list[Any]:
    return [one[field] for one in events if one["event"] == event]


def rows_of(kind: Kind) -> dict[str, Sequence[Row]]:
    return {"train": kind.rows(50, 1), "validation": kind.rows(17, 2)}


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("name", ALONE)
def test_two_files_by_size_train_as_one_file_with_their_rows(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    whole = job_of(tmp_path / "whole", kind, "run")
    rows = rows_of(kind)
    parts = [
        write_data(tmp_path / folder, {split: rows[split][part] for split in rows})
        for folder, part in (("first", slice(12)), ("second", slice(12, None)))
    ]
    split = mixed(job_of(tmp_path / "mixed", kind, "run"), [*map(DataSet, parts)])
    one, two = run_rank(whole), run_rank(split)
    assert fields(two, "step", "loss") == pytest.approx(fields(one, "step", "loss"), rel=1e-5)
    [alone], [both] = fields(one, "result", "metrics"), fields(two, "result", "metrics")
    if "loss" in alone:
        assert both["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert {f"{metric}{of}" for metric in alone for of in ("", "_first", "_second")} == {*both}


@pytest.mark.usefixtures("one_world")
def test_columns_and_losses_of_each_data_set(tmp_path: Path) -> None:
    kind = KINDS["classes"]
    rows = rows_of(kind)
    renamed = {
        split: [{"body": row["text"], "kind": row["label"], "text": 3} for row in rows[split]]
        for split in rows
    }
    plain, other = (
        write_data(tmp_path / "plain", rows),
        write_data(tmp_path / "other", {"train": renamed["train"][:9]}),
    )
    job = job_of(tmp_path / "job", replace(kind, options={}), "run")
    sets = [
        DataSet(plain),
        DataSet(other, fields={"text_columns": ("body",), "label_column": "kind"}),
    ]
    events = run_rank(mixed(job, sets))
    [report] = [one for one in events if one["event"] == "data"]
    assert {
        one["set"]: (one["rows"], one.get("columns", {}).get("text")) for one in report["sets"]
    } == {
        "train_plain": (50, ["text"]),
        "train_other": (7, ["body"]),
        "validation_plain": (17, None),
        "validation_other": (2, None),
    }
    assert [sample[0]["set"] for sample in report["samples"]] == ["train_plain", "train_other"]


PAIRS = 40  # number of rows of the first data set


def scored(count: int, seed: int) -> list[Row]:
    """Pairs of texts with a score."""
    return [
        {"sentence1": row["query"], "sentence2": row["positive"], "score": number % 5 / 4}
        for number, row in enumerate(triplets(count, seed))
    ]


def pairs_and_scores(folder: Path, run: str, **recipe: Any) -> Job:
    kind = KINDS["queries"]
    pairs = write_data(
        folder / "pairs", {"train": triplets(PAIRS, 1), "validation": triplets(9, 2)}
    )
    scores = write_data(folder / "scores", {"train": scored(23, 3), "validation": scored(8, 4)})
    sets = [
        DataSet(pairs, fields={"loss": "ranking", "query_prompt": "w9 "}),
        DataSet(scores, fields={"loss": "cosine"}),
    ]
    job = job_of(folder, kind, run, save_strategy="steps", save_steps=4)
    return replace(mixed(job, sets, **recipe), log_samples=True)


def logged(job: Job) -> list[list[int]]:
    """The samples of each step, over all ranks, sorted."""
    steps: dict[int, list[int]] = {}
    for path in (job.run_dir / "samples").iterdir():
        for line in map(json.loads, path.read_text().splitlines()):
            steps.setdefault(line["step"], []).extend(line["samples"])
    return [sorted(samples) for _, samples in sorted(steps.items())]


def _rank(rank: int, jobs: Sequence[Job], ports: Sequence[int], size: int) -> None:
    torch.set_num_threads(1)
    for job, port in zip(jobs, ports, strict=True):
        os.environ |= {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MASTER_PORT": str(port)}
        rank_module.run(job)


@pytest.mark.usefixtures("one_world")
def test_a_batch_of_embeddings_has_one_data_set_and_its_loss(tmp_path: Path) -> None:
    job = pairs_and_scores(tmp_path, "runs/one", data_mixing="equal")
    events = run_rank(job)
    sets = [{sample < PAIRS for sample in step} for step in logged(job)]
    assert sets == [{True}, {False}] * 4
    losses = fields(events, "step", "loss")
    # cross entropies of 9 random texts, and squared errors of cosines
    assert min(losses[::2]) > 1.5 > max(losses[1::2])
    [metrics] = fields(events, "result", "metrics")
    assert {"ndcg_at_10_pairs", "ndcg_at_10", "spearman_scores", "spearman"} <= {*metrics}
    assert not {"ndcg_at_10_scores", "spearman_pairs"} & {*metrics}
    assert metrics["spearman"] == metrics["spearman_scores"]


@pytest.mark.usefixtures("one_world")
def test_two_ranks_continue_exactly_where_one_rank_stopped(tmp_path: Path) -> None:
    first = pairs_and_scores(tmp_path, "runs/first")
    whole = run_rank(first)
    shutil.rmtree(first.run_dir / "checkpoints/checkpoint-8")
    later = pairs_and_scores(tmp_path, "runs/later")
    later = replace(later, prefix=tmp_path, resume=("first",))
    write_inputs(later.run_dir, prepare(later))
    start(_rank, 2, [later], free_ports(1), 2)
    resumed = read_events(later)
    assert fields(resumed, "step", "step") == [5, 6, 7, 8]
    wanted = fields(whole, "step", "loss")[4:]
    assert fields(resumed, "step", "loss") == pytest.approx(wanted, rel=1e-4)
    assert logged(later) == logged(first)[4:]
    [one], [two] = fields(whole, "result", "metrics"), fields(resumed, "result", "metrics")
    assert two == pytest.approx(one, rel=1e-3)
    written = json.loads(json.dumps(later.to_dict()["recipe"]))
    assert recipe_of(written) == later.recipe


def test_classes_that_differ_by_data_set_are_refused(tmp_path: Path) -> None:
    kind = KINDS["several classes"]
    rows = rows_of(kind)["train"]
    three = [{"text": row["text"], "a": 1, "b": n % 2, "c": 0} for n, row in enumerate(rows)]
    four = [{**row, "d": 1} for row in three]
    sets = [
        DataSet(write_data(tmp_path / name, {"train": data}))
        for name, data in (("three", three), ("four", four))
    ]
    job = mixed(job_of(tmp_path / "job", kind, "run"), sets)
    with pytest.raises(TrainError, match="data sets three and four have different columns"):
        prepare(job)


@pytest.mark.parametrize("name", ["completions", "classes"])
def test_an_error_of_a_row_names_its_data_set(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    rows = [dict(row) for row in kind.rows(30, 1)]
    good = write_data(tmp_path / "good", {"train": rows})
    rows[6][{"completions": "completion", "classes": "text"}[name]] = 7
    bad = write_data(tmp_path / "bad", {"train": rows})
    job = mixed(job_of(tmp_path / "job", kind, "run"), [DataSet(good), DataSet(bad)])
    with pytest.raises((TrainError, DataError), match=r"data set bad: .*train"):
        prepare(job)


@pytest.mark.usefixtures("one_world")
def test_a_model_is_evaluated_on_each_data_set(tmp_path: Path) -> None:
    kind = KINDS["summaries"]
    rows = rows_of(kind)["train"]
    paths = [
        write_data(tmp_path / name, {"rows": rows[part]})
        for name, part in (("few", slice(5)), ("many", slice(5, None)))
    ]
    job = mixed(job_of(tmp_path / "job", kind, "run"), [*map(DataSet, paths)])
    model = write_model(tmp_path / "trained", kind.model, kind.task, head=True)
    job = replace(
        job, purpose="evaluate", recipe=replace(job.recipe, model=model, from_scratch=False)
    )
    whole = write_data(tmp_path / "whole", {"rows": rows})
    alone = replace(job, run_dir=tmp_path / "alone", recipe=replace(job.recipe, data=whole))
    [both], [one] = (fields(run_rank(each), "result", "metrics") for each in (job, alone))
    assert {*both} == {f"{name}{of}" for name in one for of in ("", "_few", "_many")}
    for name in ("loss", "rouge1", "rougeL", "gen_len"):  # means over tokens or rows
        assert both[name] == pytest.approx(one[name], rel=1e-5)


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("name", ["texts", "distilled embeddings", "completions"])
def test_weights_set_the_share_of_each_data_set(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    few, many = (
        write_data(tmp_path / folder, {"train": kind.rows(*rows)})
        for folder, rows in (("few", (12, 1)), ("many", (60, 2)))
    )
    job = mixed(job_of(tmp_path / "job", kind, "run"), [DataSet(few, weight=3), DataSet(many)])
    events = run_rank(replace(job, log_samples=True))
    [report] = [one["sets"] for one in events if one["event"] == "data"]
    [first] = [one["samples"] for one in report if one["set"] == "train_few"]
    steps = logged(job)
    shares = [sum(sample < first for sample in step) / len(step) for step in steps]
    if job.recipe.teacher:  # each batch has one data set
        assert [*map(round, shares)] == shares == [1, 1, 0, 1] * 2
    else:
        assert sum(shares) / len(steps) == pytest.approx(3 / 4, abs=0.1)
    [metrics] = fields(events, "result", "metrics")
    assert {"loss", "loss_few", "loss_many"} <= {*metrics}


@pytest.mark.usefixtures("one_world")
def test_a_tokenizer_and_a_model_are_trained_on_two_texts(tmp_path: Path) -> None:
    """One is a folder and one a file, as in tests/cluster/test_tasks.py."""
    (tmp_path / "gifts").mkdir()
    lines = (f"Anna gave Bruno {number} red balls.\n" for number in range(300))
    (tmp_path / "gifts/all.txt").write_text("".join(lines))
    (tmp_path / "more.txt").write_text("Bruno gave Anna a cup.\n" * 50)
    tiny = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32}
    job = make_whole_job(
        tmp_path / "run", "causal-lm", "", "config:gpt2", {"block_size": 48, "vocab_size": 300},
        {"config_overrides": tiny}, eval_strategy="epoch", max_steps=4,
    )  # fmt: skip
    paths = [str(tmp_path / name) for name in ("gifts", "more.txt")]
    events = run_rank(mixed(job, [*map(DataSet, paths)]))
    notices = fields(events, "notice", "message")
    for notice in ("a tokenizer of 300 tokens", "validation_gifts: the last ", "validation_more: "):
        assert any(notice in message for message in notices), notices
    [metrics] = fields(events, "result", "metrics")
    names = ("loss", "perplexity")
    assert tuple(metrics) == (
        *names,
        *(f"{name}_{of}" for of in ("gifts", "more") for name in names),
    )
