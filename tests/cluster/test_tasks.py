"""Each kind of task with the installed command: it trains, and its ranks exchange gradients."""

import functools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import Machine
from tests.cluster.rows import Row, write_rows
from tests.programs import Terminal, wait_for

LONG = pytest.mark.long
Trained = Callable[[str], "subprocess.CompletedProcess[str]"]
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}
CONTEXT = "Anna has had a red ball for years. " * 5  # longer than a feature

QUESTIONS: tuple[Row, ...] = (
    {"question": "Who has a ball?", "answers": {"text": ["Anna"], "answer_start": [0]}},
    {"question": "Who has a cup?", "answers": {"text": [], "answer_start": []}},
)


def mnli_folder(folder: Path) -> Path:
    def row(number: int) -> Row:
        hypothesis = f"Anna has {('a ball', 'a red lamp', 'nothing')[number % 3]}."
        premise = f"Anna has a red ball and {number} green lamps."
        return {"premise": premise, "hypothesis": hypothesis, "label": number % 3}

    return write_rows(folder, row, train=50, validation_matched=12, validation_mismatched=12)


def squad_folder(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {"context": CONTEXT, **QUESTIONS[number % 4 == 0]}

    return write_rows(folder, row, train=30, validation=12)


def texts_and_more(folder: Path) -> tuple[Path, Path]:
    """Write two data sets: a folder with a text, and a text."""
    (folder / "gifts").mkdir(parents=True)
    lines = (f"Anna gave Bruno {number} red balls.\n" for number in range(300))
    (folder / "gifts/all.txt").write_text("".join(lines))
    (folder / "more.txt").write_text("Bruno gave Anna a cup.\n" * 50)
    return folder / "gifts", folder / "more.txt"


@dataclass(frozen=True)
class Kind:
    """A kind of task as the tests run it.

    Attributes:
        command: recipe and overrides.
        data: writes its data into a new folder, and returns the paths of its data sets.
        model_class: the class of transformers that loads the trained model.
        metrics: the names that come out.
        notices: the notices about the data, as regular expressions.
    """

    command: tuple[str, ...]
    data: Callable[[Path], tuple[Path, ...]]
    model_class: str
    metrics: tuple[str, ...]
    notices: tuple[str, ...] = ()


KINDS = {
    "classes": Kind(
        ("glue", "glue_task=mnli", "max_length=10"),
        lambda folder: (mnli_folder(folder),),
        "AutoModelForSequenceClassification",
        ("accuracy_matched", "loss_matched", "accuracy_mismatched", "loss_mismatched"),
        ("truncated to 10 tokens",),
    ),
    "answers": Kind(
        ("squad", "version_2_with_negative=true", "max_length=40", "max_query_length=8",
         "doc_stride=12"),
        lambda folder: (squad_folder(folder),),
        "AutoModelForQuestionAnswering",
        ("exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
        ("train: 30 questions, ([6-9]|1[0-9])[0-9] features", "validation: 12 questions, "),
    ),
    "texts": Kind(
        ("gpt2-shakespeare", f"config_overrides={TINY}", "block_size=48", "vocab_size=300",
         "training.learning_rate=1e-2"),
        texts_and_more,
        "AutoModelForCausalLM",
        ("loss", "perplexity", "loss_gifts", "perplexity_gifts", "loss_more", "perplexity_more"),
        (
            "tokenizer of 300 tokens", "validation_more: the last ",
            "block_size is 32, the model's limit, instead of 48",
        ),
    ),
}  # fmt: skip
# Each rank computes its share of a batch in parts. The batch size is odd, so that shares and parts
# differ.
EIGHT_STEPS = (
    "--ranks-per-host", "2", "batch_size=9", "training.gradient_accumulation_steps=2",
    "precision=fp32", "training.max_steps=8", "training.logging_steps=1",
    "training.warmup_ratio=0", "--json",
)  # fmt: skip
LOAD = """
import sys
import transformers
from transformers import AutoTokenizer
folder, model_class = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = getattr(transformers, model_class).from_pretrained(folder)
print(model(**tokenizer("Anna has a red ball.", return_tensors="pt"))[0].shape[0])
"""


@pytest.fixture(scope="module")
def trained(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return the output of a training of this kind."""
    folder = tmp_path_factory.mktemp("kinds")

    @functools.cache
    def of(name: str) -> "subprocess.CompletedProcess[str]":
        kind = KINDS[name]
        options = [f"--data={path}" for path in kind.data(folder / name)]
        if name != "texts":  # whose model has random weights
            options += ["--model", str(machine.model)]
        done = machine.home.run("train", *kind.command, *options, *EIGHT_STEPS)
        assert machine.home.left_running() == []
        return done

    return of


@pytest.mark.parametrize(
    "name", ["texts", *(pytest.param(name, marks=LONG) for name in ("classes", "answers"))]
)
def test_two_ranks_train_each_kind_of_task(machine: Machine, trained: Trained, name: str) -> None:
    """tests/engine/test_run_on_ranks.py compares two ranks with one rank."""
    kind, done = KINDS[name], trained(name)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for notice in kind.notices:
        assert re.search(notice, done.stderr), done.stderr
    assert len(re.findall(r"^step \d+/8 .* loss [\d.]+", done.stderr, re.M)) == 8
    metrics = json.loads(done.stdout)["metrics"]
    assert tuple(metrics) == kind.metrics
    if name == "texts":
        assert metrics["perplexity"] < 250  # chance among 300 tokens would be 300
    words = [json.loads(done.stdout)["model"], kind.model_class]
    loaded = subprocess.run(
        [str(machine.python), "-c", LOAD, *words], capture_output=True, text=True, check=False
    )
    assert loaded.stdout == "1\n", loaded.stderr


def test_prompts_are_typed_to_one_process(machine: Machine, trained: Trained) -> None:
    """Load the model once for all prompts; the process ends with the command, however that ends."""
    home, words = machine.home, json.loads(trained("texts").stdout)["run"]

    def generated() -> list[str]:
        listed = json.loads(home.run("ps", "--all", "--json").stdout)
        return [one["state"] for one in listed if one["run"].startswith("generate-")]

    there, prompt = generated(), r"(?<![^\n])> "
    person = Terminal(home, "generate", words, "--max-new-tokens", "5")
    person.read_until(prompt)
    for typed in ("Anna gave\n", "\x03", "Bruno\n"):
        # readline misses a signal between its prompt and its wait; nobody types that quickly
        time.sleep(0.5)
        person.type(typed)
        shown = person.read_until(prompt)
        assert ("answering" in shown) == (typed == "Anna gave\n")
    person.type("\x04")
    assert person.wait() == 0
    assert generated() == ["done", *there]
    assert not [*home.prefix.glob("runs/generate-*/prompts.jsonl")]
    assert home.left_running() == []

    person = Terminal(home, "generate", words, "--max-new-tokens", "5")
    person.read_until(prompt)
    person.type("Anna gave\n")
    person.read_until(prompt)
    os.kill(person.pid, signal.SIGKILL)
    assert person.wait() == -signal.SIGKILL
    assert home.left_running()  # nobody has told the run to end yet
    wait_for(lambda: not home.left_running())
    assert generated() == ["done", "done", *there]
