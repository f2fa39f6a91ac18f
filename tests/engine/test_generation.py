"""What a tuned model writes is what transformers' pipeline writes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from ftcluster_common.job import EVALUATE, GENERATE, Job
from ftcluster_train.errors import TrainError
from tests.engine.jobs import make_job, run_rank
from tests.engine.test_instruction_tuning import TASK, chats, job_of, write_chat_model

pytestmark = pytest.mark.usefixtures("one_world")
GREEDY = {"max_new_tokens": 6, "temperature": 0.0, "top_p": 1.0, "seed": 1, "system": ""}
PROMPTS = ["w5 w6", "w7"]


def texts(folder: Path, model: str, **asked: Any) -> tuple[list[str], list[str]]:
    """The answers, and the texts of the pieces that were logged, by prompt."""
    job = make_job(folder, TASK)
    recipe = replace(job.recipe, model=model, from_scratch=False)
    generation = {**GREEDY, "prompts": PROMPTS, **asked}
    events = run_rank(replace(job, recipe=recipe, purpose=GENERATE, generation=generation))
    pieces = ["" for _ in PROMPTS]
    for event in events:
        if event["event"] == "text":
            pieces[event["prompt"]] += event["text"]
    return events[-1]["answers"], pieces


def test_answers_are_those_of_transformers_pipeline(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model")
    answers, pieces = texts(tmp_path / "one", model)
    theirs = pipeline("text-generation", model=model)
    for prompt, answer, piece in zip(PROMPTS, answers, pieces, strict=True):
        messages = [{"role": "user", "content": prompt}]
        [found] = theirs(messages, max_new_tokens=6, do_sample=False)
        assert found["generated_text"][-1]["content"].strip() == answer.strip() == piece.strip()
    drawn = [
        texts(tmp_path / f"{n}", model, temperature=5.0, seed=s) for n, s in enumerate((7, 7, 8))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_model_without_a_template_continues_the_prompt(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model", template=None)
    answers, _ = texts(tmp_path / "one", model)
    assert all(answers)
    with pytest.raises(TrainError, match="no place for a system message"):
        texts(tmp_path / "two", model, system="Be brief.")


def test_an_evaluation_shows_answers_beside_their_references(tmp_path: Path) -> None:
    job: Job = job_of(tmp_path, chats(30, 1), options={"lora_r": 2}, num_train_epochs=1.0)
    trained = run_rank(job)[-1]
    adapters, _ = texts(tmp_path / "one", trained["model"])
    assert all(adapters)  # of the base that the folder names, with the adapters

    whole = replace(job.recipe, options=replace(job.recipe.options, lora_r=None))
    measured = replace(job, run_dir=tmp_path / "runs/two", recipe=whole, purpose=EVALUATE)
    events = run_rank(measured), run_rank(replace(measured, run_dir=tmp_path / "runs/three"))
    first, again = (found[-1]["texts"] for found in events)
    assert first == again
    [rows] = first.values()
    assert len(rows) == 3
    for prompt, reference, _ in rows:
        last = prompt.split()[-1]
        assert reference.split() == [last, last]
