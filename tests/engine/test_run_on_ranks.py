"""A whole run on two or four ranks equals the run on one rank."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.models.sentence_modules import SentenceModules, module_files
from ftcluster_common.protocol.job import Job
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import run
from tests.engine.forks import start
from tests.engine.runs import (
    Row,
    classes,
    completions,
    judgements,
    make_whole_job,
    numbers,
    preferences,
    questions,
    sets_of_classes,
    summaries,
    tags,
    triplets,
    write_data,
    write_model,
)
from tests.programs import free_ports

STEPS = 8
BATCH = 9  # odd, so that ranks and the parts of their batches have unequal shares
Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of task: its model, its data, its changed fields, and the names of its metrics.

    Attributes:
        teacher: the teacher's model and what that is for.
        tolerance: relative difference of the losses.
        new_tokens: tokens that the vocabulary gets.
    """

    task: str
    model: str
    rows: Callable[[int, int], Sequence[Row]]
    options: dict[str, Any]
    metrics: tuple[str, ...]
    teacher: tuple[str, str] | None = None
    tolerance: float = 1e-4
    new_tokens: tuple[str, ...] = ()


def marked(rows: Callable[[int, int], Sequence[Row]]) -> Callable[[int, int], Sequence[Row]]:
    """Return rows with a new token before each word that begins with w1."""

    def with_marks(count: int, seed: int) -> Sequence[Row]:
        text = json.dumps(list(rows(count, seed))).replace("w1", "<new> w1")
        marked_rows: Sequence[Row] = json.loads(text)
        return marked_rows

    return with_marks


def half_labelled(count: int, seed: int) -> Sequence[Row]:
    """Return rows with the names of a teacher's classes, or without a label."""
    return [
        {"text": row["text"], "label": f"LABEL_{row['label']}" if number % 2 else None}
        for number, row in enumerate(classes(count, seed))
    ]


KINDS = {
    # with weights, whose sums differ by rank and part
    "classes": Kind(
        "text-classification", "bert", classes, {"class_weights": {"0": 0.1, "2": 5.0}},
        ("accuracy", "f1_macro", "loss"),
    ),
    "several classes": Kind(
        "text-classification", "bert", sets_of_classes, {}, ("f1_micro", "f1_macro", "loss")
    ),
    "numbers": Kind(
        "text-classification", "bert", numbers, {"regression": True},
        ("pearson", "spearman", "loss"),
    ),
    "answers": Kind(
        "question-answering", "bert", questions, {"version_2_with_negative": True},
        ("exact_match", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
    ),
    "tags": Kind(
        "token-classification", "bert", tags, {},
        ("precision", "recall", "f1", "accuracy", "loss"),
    ),
    "masks": Kind("masked-lm", "bert", classes, {"whole_word_mask": True}, ("loss", "perplexity")),
    "texts": Kind(
        "causal-lm", "gpt2", marked(classes), {}, ("loss", "perplexity"), new_tokens=("<new>",)
    ),
    "completions": Kind(
        "instruction-tuning", "gpt2", completions, {"chat_template": False},
        ("loss", "perplexity"),
    ),
    "ranking": Kind(
        "text-ranking", "bert", triplets, {},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "accuracy", "loss"),
    ),
    "lists": Kind(
        "text-ranking", "bert", triplets, {"loss": "listnet"},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "accuracy", "loss"),
    ),
    "queries": Kind(
        "sentence-similarity", "bert", triplets, {},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100"),
    ),
    "few labels": Kind(
        "few-shot-classification", "bert", classes, {"num_iterations": 1},
        ("accuracy", "f1_macro", "loss"),
    ),
    "sparse vectors": Kind(
        "sparse-encoding", "bert", triplets, {"document_regularizer_weight": 0.01},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100",
         "query_active_dims", "document_active_dims"),
        tolerance=2e-3,  # rounding decides if a logit near 0 has a gradient, and of which token
    ),
    "vectors of tokens": Kind(
        "multi-vector-encoding", "bert", triplets, {"query_expansion": True},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100"),
    ),
    "without packing": Kind(
        "instruction-tuning", "bloom", completions, {"chat_template": False},
        ("loss", "perplexity"),
    ),
    "summaries": Kind(
        "seq2seq-lm", "t5", summaries, {"max_new_tokens": 3},
        ("loss", "rouge1", "rouge2", "rougeL", "chrf", "bleu", "gen_len"),
    ),
    "preferences": Kind(
        "preference-tuning", "gpt2", preferences, {"chat_template": False},
        ("loss", "accuracy", "margin"),
    ),
    "odds ratios": Kind(
        "preference-tuning", "gpt2", preferences, {"chat_template": False, "loss_type": "orpo"},
        ("loss", "accuracy", "margin"),
    ),
    "judgements": Kind(
        "unpaired-preference-tuning", "gpt2", judgements, {"chat_template": False},
        ("loss", "kl", "chosen_reward", "rejected_reward", "margin"),
    ),
    "distilled classes": Kind(
        "text-distillation", "bert", half_labelled, {},
        ("accuracy", "f1_macro", "agreement", "loss"), ("roberta", "text-classification"),
    ),
    "distilled embeddings": Kind(
        "sentence-similarity", "bert", classes, {"loss": "mse"}, ("cosine", "loss"),
        ("roberta", "sentence-similarity"),
    ),
    "adapters of a classifier": Kind(
        "text-classification", "gpt2", classes, {"lora_r": 4, "use_dora": True},
        ("accuracy", "f1_macro", "loss"),
    ),
    "guided queries": Kind(
        "sentence-similarity", "bert", triplets, {"loss": "gist"},
        ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100"),
        ("roberta", "sentence-similarity"),
    ),
    "adapters of NF4": Kind(
        "preference-tuning", "llama", marked(preferences),
        {"chat_template": False, "lora_r": 4, "load_in_4bit": True}, ("loss", "accuracy", "margin"),
        new_tokens=("<new>",),
    ),
}  # fmt: skip
FOUR = ("completions",)  # also on four ranks, because their numbers of target tokens differ most


def job_of(folder: Path, kind: Kind, name: str, **training: Any) -> Job:
    data = write_data(folder / "data", {"train": kind.rows(50, 1), "validation": kind.rows(17, 2)})
    # a decoder's head is then not trained, so the model must have it
    adapted = "lora_r" in kind.options and kind.task == "preference-tuning"
    model = write_model(folder / "model", kind.model, kind.task, head=adapted)
    recipe: dict[str, Any] = {"batch_size": BATCH, "new_tokens": kind.new_tokens}
    if kind.teacher:
        recipe["teacher"] = write_model(folder / "teacher", *kind.teacher, head=True)
        if kind.task == "sentence-similarity":
            files = module_files(SentenceModules("mean", normalize=True), 32, 24, {})
            for file, document in files.items():
                (folder / "teacher" / file).parent.mkdir(exist_ok=True)
                (folder / "teacher" / file).write_text(json.dumps(document))
    return make_whole_job(
        folder / name, kind.task, data, model, kind.options, recipe, max_steps=STEPS,
        eval_strategy="epoch", adam_epsilon=1e-6, **training,
    )  # fmt: skip


def prepared(folder: Path, kind: Kind, ranks: int) -> Job:
    job = job_of(folder, kind, f"run-{ranks}", gradient_accumulation_steps=min(ranks, 2))
    write_inputs(job.run_dir, prepare(job))
    job = replace(job, log_samples=True, resume=("stopped",), must_resume=False)
    for folder_of_run in job.run_dirs:
        (folder_of_run / "snapshots").mkdir(parents=True, exist_ok=True)
    return job


def _rank(rank: int, jobs: Sequence[Job], ports: Sequence[int], size: int) -> None:
    torch.set_num_threads(1)
    for job, port in zip(jobs, ports, strict=True):
        os.environ |= {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MASTER_PORT": str(port)}
        run(job)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Events]:
    """Return the events of each kind's run by number of ranks."""
    folder = tmp_path_factory.mktemp("runs")
    events = {}
    for size, names in ((1, KINDS), (2, KINDS), (4, FOUR)):
        jobs = {name: prepared(folder / name, KINDS[name], size) for name in names}
        order = [*jobs.values()]
        if size < 4:  # as if the ranks had been restarted after they saved the model
            again = prepared(folder / "again", KINDS["classes"], size)
            order = [again, again, *order]
        start(_rank, size, order, free_ports(len(order)), size)
        for name, job in jobs.items():
            assert not any((run / "snapshots").exists() for run in job.run_dirs)
            lines = (job.run_dir / "events.jsonl").read_text().splitlines()
            logs = (path.read_text() for path in (job.run_dir / "samples").iterdir())
            logged = [{"event": "samples", **json.loads(line)}
                      for text in logs for line in text.splitlines()]  # fmt: skip
            events[name, size] = [*(json.loads(line) for line in lines), *logged]
    return events


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 2) for name in KINDS), *((name, 4) for name in FOUR)]
)
def test_several_ranks_follow_the_same_loss_as_one(
    runs: dict[tuple[str, int], Events], name: str, ranks: int
) -> None:
    def found(size: int, event: str) -> Events:
        return [one for one in runs[name, size] if one["event"] == event]

    one, several = ([step["loss"] for step in found(size, "step")] for size in (1, ranks))
    assert len(set(one)) == STEPS  # the loss changes with each step
    assert several[:2] == pytest.approx(one[:2], rel=1e-4)
    assert several == pytest.approx(one, rel=KINDS[name].tolerance)
    [alone], [shared] = found(1, "result"), found(ranks, "result")
    [reloaded] = found(ranks, "reloaded")
    assert reloaded["folder"] == shared["model"]
    if "NF4" in name:
        assert reloaded["difference"] is None
    else:
        assert reloaded["difference"] < 1e-5
    assert (alone["world_size"], shared["world_size"]) == (1, ranks)
    assert shared["metrics"] == pytest.approx(alone["metrics"], rel=10 * KINDS[name].tolerance)
    assert tuple(shared["metrics"]) == KINDS[name].metrics
    for step in range(1, STEPS + 1):
        batch, *shares = (
            one["samples"]
            for size in (1, ranks)
            for one in found(size, "samples")
            if one["step"] == step
        )
        assert len(shares) == ranks
        assert sorted(batch) == sorted(chain(*shares))
