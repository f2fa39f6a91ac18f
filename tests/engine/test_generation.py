"""Texts that a tuned model generates equal the texts of transformers' pipeline."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, pipeline

from ftcluster_common.protocol.job import EVALUATE, GENERATE, Job
from ftcluster_train.engine import generation
from ftcluster_train.engine.checkpoints import save_model
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.errors import TrainError, TrainingStopped
from tests.engine.jobs import make_job, run_rank
from tests.engine.models import make_model, make_tokenizer
from tests.engine.test_instruction_tuning import (
    ANSWER,
    BEGIN,
    PAD,
    TASK,
    chats,
    job_of,
    write_chat_model,
)

pytestmark = pytest.mark.usefixtures("one_world")
GREEDY = {"max_new_tokens": 6, "temperature": 0.0, "top_p": 1.0, "seed": 1, "system": ""}
PROMPTS = ["w5 w6", "w7"]


def texts(folder: Path, model: str, **asked: Any) -> tuple[list[str], list[str]]:
    """Return the answers, and the joined pieces that were logged, by prompt."""
    job = make_job(folder, TASK)
    recipe = replace(job.recipe, model=model, from_scratch=False)
    generation = {**GREEDY, "prompts": PROMPTS, **asked}
    events = run_rank(replace(job, recipe=recipe, purpose=GENERATE, generation=generation))
    answers = events[-1]["answers"]
    pieces = ["" for _ in answers]
    for event in events:
        if event["event"] == "text":
            pieces[event["prompt"]] += event["text"]
    return answers, pieces


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


def session(folder: Path, model: str, lines: list[str]) -> list[str]:
    """Return the answers to PROMPTS and to typed lines, each typed after the previous answer."""
    events = folder / "events.jsonl"

    def answered() -> int:
        return events.read_text().count('"answered"') if events.exists() else 0

    def type_lines() -> None:
        for number, line in enumerate(lines):
            while answered() < len(PROMPTS) + number and not over.wait(0.02):
                pass
            with (events.parent / "prompts.jsonl").open("a") as file:
                file.write(f"\n{line}\n")  # an empty line is a sign that the user is still there

    over, typing = threading.Event(), threading.Thread(target=type_lines)
    typing.start()
    try:
        return texts(folder, model, more=True)[0]
    finally:
        over.set()
        typing.join()
        assert not (events.parent / "prompts.jsonl").exists() or not lines


def test_prompts_that_are_typed_are_answered_by_a_model_that_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loaded = write_chat_model(tmp_path / "model"), []
    load = generation.load_decoder
    monkeypatch.setattr(
        generation, "load_decoder", lambda *given: (loaded.append(given), load(*given))[1]
    )
    found = session(tmp_path / "one", model, [json.dumps("w9 w8"), json.dumps("w6"), "null"])
    assert len(loaded) == 1
    assert found == texts(tmp_path / "two", model, prompts=[*PROMPTS, "w9 w8", "w6"])[0]


def test_a_session_does_not_end_because_the_clock_was_set(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"w9"\n\n"w8"\nnull\n')
    long_ago = time.time() - 86400
    os.utime(prompts, (long_ago, long_ago))
    assert list(generation._typed(prompts, lambda: False)) == ["w9", "w8"]


def test_a_session_ends_where_nobody_is_there_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "SESSION_SECONDS", 0.5)
    model = write_chat_model(tmp_path / "model")
    found = session(tmp_path / "one", model, [json.dumps("w9")])
    assert len(found) == len(PROMPTS) + 1
    with pytest.raises(TrainError, match=r"cannot read a line of prompts\.jsonl as a prompt"):
        session(tmp_path / "damaged", model, ['["w9"]'])
    monkeypatch.setattr(generation, "SESSION_SECONDS", 3600.0)
    threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(TrainingStopped):
        session(tmp_path / "two", model, [])


def test_a_model_without_a_template_continues_the_prompt(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model", template=None)
    answers, _ = texts(tmp_path / "one", model)
    assert all(answers)
    with pytest.raises(TrainError, match="no place for a system message"):
        texts(tmp_path / "two", model, system="Be brief.")


def test_an_answer_ends_where_the_positions_of_the_model_end() -> None:
    model = make_model("gpt2", TASK).eval()
    model.generation_config.eos_token_id = None
    positions = model.config.n_positions
    for prompt, answer in ((positions - 2, 2), (positions, 0)):
        assert len(generation.answer_of(model, [5] * prompt, GREEDY)) == answer
    with pytest.raises(TrainError, match=f"{positions + 1} tokens, but .* {positions} positions"):
        generation.answer_of(model, [5] * (positions + 1), GREEDY)


def test_an_evaluation_shows_answers_beside_their_references(tmp_path: Path) -> None:
    job: Job = job_of(tmp_path, chats(30, 1), options={"lora_r": 2}, num_train_epochs=1.0)
    trained = run_rank(job)[-1]
    adapters, _ = texts(tmp_path / "one", trained["model"])
    assert all(adapters)  # the folder has adapters and names its base

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


@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "adapters"])
def test_an_answer_ends_with_the_end_that_was_learned(tmp_path: Path, adapters: bool) -> None:
    """An answer ends with the trained end token; the base knows only the end of a text."""
    base = Path(write_chat_model(tmp_path / "model"))
    config = base / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": ANSWER}))
    job = job_of(
        tmp_path, chats(200, 1), model=str(base), max_steps=60,
        learning_rate=3e-2 if adapters else 5e-3, options={"lora_r": 8 if adapters else None},
    )  # fmt: skip
    folder = run_rank(job)[-1]["model"]
    ends = json.loads((Path(folder) / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [ANSWER, PAD]
    if adapters:
        model = generation.load_decoder(folder, tmp_path, torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    ended = 0
    for word in range(4, 24):
        ids = torch.tensor([[BEGIN, word, PAD, BEGIN, ANSWER]])
        found = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
        assert PAD not in found[:-1]
        ended += found[-1] == PAD
    assert ended > 10
    if adapters:  # a file of others that has no end tokens
        (Path(folder) / "generation_config.json").write_text('{"temperature": 0.5}')
        model = generation.load_decoder(folder, tmp_path, torch.float32)
        assert model.generation_config.eos_token_id == ANSWER


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("{{ m.content }}\n[PAD]\n", [2, PAD]),
        ("{{ m.content }} w7\n", 2),  # an end token that answers may contain too
        ("{{ m.role }} [PAD]", 2),  # without the answer
        ("{{ m.content }} [CLS]", 2),  # an end token that the tokenizer knows already
    ],
)
def test_which_token_ends_an_answer(tmp_path: Path, written: str, ends: Any) -> None:
    template = f"{{% for m in messages %}}{written}{{% endfor %}}"
    job = make_job(tmp_path, TASK)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    model = make_model("llama", TASK, eos_token_id=2)
    save_model(model, make_task(job.recipe, tokenizer), tmp_path / "saved")
    config = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert config["eos_token_id"] == ends
