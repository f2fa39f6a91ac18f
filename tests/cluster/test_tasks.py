"""Each kind of task through the installed command: it trains, its ranks share the gradients."""

import json
import random
import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Machine

THINGS = ("ball", "book", "lamp", "cup", "coat", "key", "drum", "chair")
COLOURS = ("red", "blue", "green", "white", "black", "grey")
NAMES = ("Anna", "Bruno", "Carla", "David", "Elena", "Felix", "Greta", "Hugo")
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

Row = dict[str, Any]


def write_rows(folder: Path, **splits: Sequence[Row]) -> Path:
    folder.mkdir()
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def inferences(count: int, seed: int) -> list[Row]:
    """Rows as MNLI's: 0 follows, 1 may be, 2 cannot be."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        name, thing, colour = draw.choice(NAMES), draw.choice(THINGS), draw.choice(COLOURS)
        said = (f"a {thing}", f"a {colour} {draw.choice(THINGS)}", "nothing at all")[number % 3]
        premise, hypothesis = f"{name} has a {colour} {thing}.", f"{name} has {said}."
        rows.append({"premise": premise, "hypothesis": hypothesis, "label": number % 3})
    return rows


def likenesses(count: int, seed: int) -> list[Row]:
    """Rows as STS-B's: from 0 to 5, how many of five words two sentences share."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.sample(THINGS, 5)
        other = [word if draw.random() < 0.5 else draw.choice(COLOURS) for word in words]
        same = sum(a == b for a, b in zip(words, other, strict=True))
        sentences = (" ".join(words), " ".join(other))
        rows.append(dict(zip(("sentence1", "sentence2"), sentences, strict=True), label=same + 0.0))
    return rows


def questions(count: int, seed: int) -> list[Row]:
    """Rows as SQuAD 2.0's: of every fourth question the context does not have the answer."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        owners = draw.sample(NAMES, 5)
        things = {name: f"{draw.choice(COLOURS)} {draw.choice(THINGS)}" for name in owners}
        context = " ".join(f"{name} has had a {thing} for years." for name, thing in things.items())
        asked = owners[number % 5] if number % 4 else "Ida"
        answers: Row = {"text": [], "answer_start": []}
        if asked in things:
            start = context.index(f"{asked} has had a ") + len(f"{asked} has had a ")
            answers = {"text": [things[asked]], "answer_start": [start]}
        rows.append({"question": f"What has {asked} had?", "context": context, "answers": answers})
    return rows


def sentences(count: int, seed: int) -> str:
    draw = random.Random(seed)
    lines = (
        f"{draw.choice(NAMES)} gave {draw.choice(NAMES)} a {draw.choice(COLOURS)} "
        f"{draw.choice(THINGS)}.\n"
        for _ in range(count)
    )
    return "".join(lines)


def mnli_folder(folder: Path) -> Path:
    sets = {"validation_matched": inferences(12, 2), "validation_mismatched": inferences(12, 3)}
    return write_rows(folder, train=inferences(50, 1), **sets)


def stsb_folder(folder: Path) -> Path:
    return write_rows(folder, train=likenesses(50, 1), validation=likenesses(20, 2))


def squad_folder(folder: Path) -> Path:
    return write_rows(folder, train=questions(30, 1), validation=questions(12, 2))


def text_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "gifts.txt").write_text(sentences(250, 1))
    (folder / "more.txt").write_text(sentences(50, 2))
    return folder


@dataclass(frozen=True)
class Kind:
    """A kind of task as the tests run it.

    Attributes:
        command: recipe and overrides.
        data: writes its data into a new folder.
        from_hub_model: whether it fine-tunes the model that the machine has.
        metrics: the names that come out.
        notices: parts of what is said of the data.
    """

    command: tuple[str, ...]
    data: Callable[[Path], Path]
    from_hub_model: bool
    metrics: tuple[str, ...]
    notices: tuple[str, ...] = ()


KINDS = {
    "classes": Kind(
        ("glue", "glue_task=mnli", "max_length=10", f"config_overrides={NO_DROPOUT}"),
        mnli_folder, True,
        ("accuracy_matched", "loss_matched", "accuracy_mismatched", "loss_mismatched"),
        ("samples were cut at 10 tokens",),
    ),
    "numbers": Kind(
        ("glue", "glue_task=stsb", f"config_overrides={NO_DROPOUT}"),
        stsb_folder, True, ("pearson", "spearman", "loss"),
    ),
    "answers": Kind(
        ("squad", "version_2_with_negative=true", "max_length=40", "max_query_length=8",
         "doc_stride=12", f"config_overrides={NO_DROPOUT}"),
        squad_folder, True,
        ("exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
        ("train: 30 questions, ", "validation: 12 questions, "),
    ),
    "texts": Kind(
        ("gpt2-shakespeare", f"config_overrides={TINY | NO_GPT2_DROPOUT}", "block_size=48",
         "vocab_size=300", "training.learning_rate=1e-2"),
        text_folder, False, ("loss", "perplexity"),
        ("a tokenizer of 300 tokens was made from the data", "validation: the last ",
         "block_size is 32 instead of 48: the model takes no more"),
    ),
}  # fmt: skip

LOAD = """
import sys
import transformers
from transformers import AutoTokenizer
folder, model_class = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = getattr(transformers, model_class).from_pretrained(folder)
print(model(**tokenizer("Anna has a red ball.", return_tensors="pt"))[0].shape[0])
"""
MODEL_CLASSES = {
    "classes": "AutoModelForSequenceClassification",
    "numbers": "AutoModelForSequenceClassification",
    "answers": "AutoModelForQuestionAnswering",
    "texts": "AutoModelForCausalLM",
}


@dataclass(frozen=True)
class Trained:
    """A training that is over: its result document, and what it said."""

    result: dict[str, Any]
    said: str


def trained(machine: Machine, kind: Kind, data: Path) -> Trained:
    """Train for eight steps with two ranks, each of which takes its share of a batch in parts.

    The batch has an odd number of samples, so that ranks and parts have unequal shares.
    """
    flags = ["--data", str(data), "--json", "batch_size=9", "precision=fp32",
             "training.max_steps=8", "training.logging_steps=1", "training.warmup_ratio=0",
             "--ranks-per-host", "2", "training.gradient_accumulation_steps=2"]  # fmt: skip
    if kind.from_hub_model:
        flags += ["--model", str(machine.model)]
    done = machine.home.run("train", *kind.command, *flags)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for notice in kind.notices:
        assert notice in done.stderr
    assert len(re.findall(r"^step \d+/8 .* loss [\d.]+", done.stderr, re.M)) == 8
    return Trained(json.loads(done.stdout), done.stderr)


@pytest.mark.parametrize("name", KINDS)
def test_two_ranks_train_each_kind_of_task(machine: Machine, tmp_path: Path, name: str) -> None:
    """That they learn what one learns is in tests/engine/test_run_on_ranks.py."""
    kind = KINDS[name]
    done = trained(machine, kind, kind.data(tmp_path / "data"))
    assert tuple(done.result["metrics"]) == kind.metrics
    if name == "answers":  # longer contexts than a feature holds
        found = re.search(r"train: 30 questions, (\d+) features", done.said)
        assert found is not None
        assert int(found[1]) > 40
    if name == "texts":
        assert done.result["metrics"]["perplexity"] < 250  # of 300 tokens
    loaded = subprocess.run(
        [str(machine.python), "-c", LOAD, done.result["model"], MODEL_CLASSES[name]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.stdout.strip() == "1", loaded.stderr
    assert machine.home.left_running() == []


def run_on_the_stack(machine: Machine, program: str, *arguments: str, ranks: int = 1) -> str:
    """Run a program with the stack's Python, under mpirun for several ranks; returns its output."""
    bin_folder = machine.python.parent
    argv = [str(machine.python), "-c", program, *arguments]
    if ranks > 1:
        argv = [str(bin_folder / "mpirun"), "-n", str(ranks), *argv]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        argv,
        env={**machine.home.env, **changes, "MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


APART = """
import torch
from ftcluster_train.distributed.world import check_equal_on_ranks, join_world, leave_world
from ftcluster_train.errors import TrainError
from ftcluster_train.optim.flat_params import FlatWeights
world = join_world()
torch.manual_seed(0)
weights = FlatWeights(torch.nn.Linear(8, 8), torch.bfloat16)
check_equal_on_ranks(weights.digest(), 1)
weights.masters[30] += 1e-7 * (world.rank == 1)
try:
    check_equal_on_ranks(weights.digest(), 20)
except TrainError as error:
    if world.rank == 0:
        print(error.message)
leave_world()
"""


def test_ranks_that_have_come_apart_are_named(machine: Machine) -> None:
    said = run_on_the_stack(machine, APART, ranks=3)
    assert "after step 20 the parameters of ranks [1] differ from those of ranks [0, 2]" in said
