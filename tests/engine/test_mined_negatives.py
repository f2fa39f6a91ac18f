"""Mined hard negatives equal sentence-transformers'; a training uses them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed.mined_negatives import hard_negatives, with_hard_negatives
from tests.engine.jobs import run_rank
from tests.engine.runs import WORDS, make_whole_job, write_data, write_model

RECORDED = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())["mined"]


@pytest.mark.parametrize("result", RECORDED["results"], ids=lambda one: str(one["settings"]))
def test_negatives_are_those_of_sentence_transformers(result: Any) -> None:
    settings = {"relative_margin": None, **result["settings"]}
    options = SentenceSimilarity(hard_negatives=settings.pop("num_negatives"), **settings)
    queries, documents = (torch.tensor(RECORDED[name]) for name in ("queries", "documents"))
    belonging: list[list[int]] = [[] for _ in queries]
    for query, document in RECORDED["pairs"]:
        belonging[query].append(document)
    assert hard_negatives(queries, documents, belonging, options, 2) == result["negatives"]


@pytest.mark.usefixtures("one_world")
def test_rows_get_the_negatives_of_their_queries(tmp_path: Path) -> None:
    rows = [{"query": f"{WORDS[n]} {WORDS[40]}", "positive": WORDS[n + 1]} for n in range(0, 20, 2)]
    more = {"query": rows[0]["query"], "positive": WORDS[30]}
    rows += [{**more, "negative": row["positive"]} for row in rows[1:4]]
    rows = [{"negative": None, **row} for row in rows]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:4]})
    model = write_model(tmp_path / "model", "bert", "sentence-similarity")
    job = make_whole_job(
        tmp_path / "runs/one", "sentence-similarity", data, model, batch_size=4, max_steps=2
    )
    options = replace(job.recipe.options, hard_negatives=2, relative_margin=None)
    job = replace(job, recipe=replace(job.recipe, options=options))
    job.run_dir.mkdir(parents=True, exist_ok=True)
    write_inputs(job.run_dir, prepare(job))
    task, loaded, samples = load(job, read_inputs(job.run_dir))
    task.check_model(loaded)
    before = samples["train"]
    found = with_hard_negatives(
        task, loaded, before, World(0, 1, "gloo"), False, ProgressLog()  # type: ignore[arg-type]
    )  # fmt: skip
    lengths = found.lengths("input_ids")
    texts_of = {text: row for row in before for text in row["texts"][1:]}
    for number, (old, new) in enumerate(zip(before, found, strict=True)):
        count = len(old["texts"])
        assert new["texts"][:count] == old["texts"]
        mined = new["texts"][count:]
        assert len({*mined}) == 2
        own = {row["texts"][1] for row in before if row["texts"][0] == old["texts"][0]}
        assert not own & {*mined}
        assert len({*new["texts"]}) == len(new["texts"])  # the row's own texts are no negatives
        assert {*mined} <= texts_of.keys()
        assert sum(new["lengths"]) == len(new["input_ids"]) == lengths[number]
        assert new["input_ids"][: len(old["input_ids"])] == old["input_ids"]
    events = run_rank(job)
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2]
    said = "hard negatives: 20 were mined for 10 queries; 0 queries have fewer than 2"
    assert any(event.get("message", "").startswith(said) for event in events)
