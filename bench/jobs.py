"""Fourteen common fine-tunings, each a single command on one host with empty caches.

    .venv-dev/bin/python -m bench.jobs --data DIR --encoder DIR [JOB ...] [--results FILE]
        [--home DIR]

from the repository's root, after `scripts/environment control`. This machine is set up in a folder
(with --home: in DIR, and kept). DIR of --data has the folders mrpc,
squad and shakespeare; --encoder is a small BERT with its tokenizer. The data of each job are made
from these rows: texts that people wrote, with labels that follow from them. Some jobs begin with
the model of another job. Each command is timed as its user waits for it, with empty caches of
models, data and tokens; the metric is computed on the validation set.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import cpu
from bench.runs import write
from bench.scale_commands import this_machine
from tests.programs import Home

Row = dict[str, Any]
TRAIN, VALIDATION = 2000, 200  # rows of each data set
WORDS = ("what", "who", "when", "where", "how")


def squad(data: Path, split: str) -> Iterator[Row]:
    """Read rows of SQuAD that have an answer."""
    with (data / "squad" / f"{split}.jsonl").open(encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if row["answers"]["text"])


def pairs(data: Path, split: str) -> Iterator[Row]:
    """Read rows of MRPC."""
    with (data / "mrpc" / f"{split}.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def question_words(data: Path, split: str) -> Iterator[Row]:
    """Yield questions without their first word, which is the class."""
    for row in squad(data, split):
        first, _, rest = row["question"].strip().partition(" ")
        if first.lower() in WORDS:
            yield {"text": rest, "label": first.lower()}


def traits(data: Path, split: str) -> Iterator[Row]:
    """Yield questions, and which of three traits they have."""
    for row in squad(data, split):
        text = row["question"]
        found = {
            "number": bool(re.search(r"\d", text)),
            "name": bool(re.search(r"\s[A-Z]", text)),
            "long": len(text) > 60,
        }
        yield {"text": text, "labels": [name for name, there in found.items() if there]}


def similarity(data: Path, split: str) -> Iterator[Row]:
    """Yield two sentences, and the share of words that both have."""
    for row in pairs(data, split):
        one, other = (set(row[name].lower().split()) for name in ("sentence1", "sentence2"))
        yield {
            "sentence1": row["sentence1"],
            "sentence2": row["sentence2"],
            "label": len(one & other) / len(one | other),
        }


def entities(data: Path, split: str) -> Iterator[Row]:
    """Yield words, with tags for names within a sentence and for numbers."""
    for row in pairs(data, split):
        words, tags, inside = row["sentence1"].split(), [], ""
        for place, word in enumerate(words):
            kind = "NUM" if word[0].isdigit() else "NAME" if place and word[0].isupper() else ""
            tags.append(f"{'I' if inside == kind else 'B'}-{kind}" if kind else "O")
            inside = kind
        yield {"tokens": words, "ner_tags": tags}


def passages(data: Path, split: str, negatives: int = 0) -> Iterator[Row]:
    """Yield a question, the sentence with its answer, and sentences of other texts."""
    others: list[str] = []
    for row in squad(data, split):
        start = row["answers"]["answer_start"][0]
        begin = row["context"].rfind(". ", 0, start) + 1
        end = row["context"].find(". ", start)
        text = row["context"][begin : end + 1 if end > 0 else None].strip()
        found: Row = {"query": row["question"], "positive": text}
        found |= {f"negative_{n}": one for n, one in enumerate(others[-5 * negatives :: 5])}
        if text not in others and len(others) >= 5 * negatives:
            yield found
        others.append(text)


def answers(data: Path, split: str) -> Iterator[Row]:
    """Yield a question and its answer as a conversation."""
    for row in squad(data, split):
        yield {"prompt": row["question"], "completion": row["answers"]["text"][0]}


def preferences(data: Path, split: str) -> Iterator[Row]:
    """Yield a question with its answer, and the previous question's answer as the worse one."""
    worse = ""
    for row in squad(data, split):
        answer = row["answers"]["text"][0]
        if worse and worse != answer:
            yield {"prompt": row["question"], "chosen": answer, "rejected": worse}
        worse = answer


def paraphrases(data: Path, split: str) -> Iterator[Row]:
    """Yield sentences with the same meaning."""
    for row in pairs(data, split):
        if row["label"] in (1, "1", "equivalent"):
            yield {"source": row["sentence1"], "target": row["sentence2"]}


@dataclass(frozen=True)
class Job:
    """One fine-tuning.

    Attributes:
        recipe, fields: recipe and fields of the command.
        rows: function that makes the job's data; None for Shakespeare's text.
        model: value of --model: the encoder, the model of another job, or "" for the recipe's.
        metric: metric of the validation set.
        equal: test that compares the task with the results of another library.
    """

    recipe: str
    rows: Callable[[Path, str], Iterable[Row]] | None
    metric: str
    equal: str
    model: str = "encoder"
    fields: tuple[str, ...] = ()


SMALL = "config_overrides={n_layer: 4, n_head: 4, n_embd: 128, n_positions: 256}"
T5 = (
    "config_overrides={num_layers: 2, d_model: 128, d_ff: 256, num_heads: 4, d_kv: 32, "
    "decoder_start_token_id: 0}"
)
JOBS = {
    "classes": Job("classify", question_words, "accuracy", "test_run_on_ranks.py"),
    "several classes": Job("classify", traits, "f1_macro", "test_classification.py"),
    "a score": Job(
        "classify", similarity, "spearman", "test_classification.py",
        fields=("regression=true",),
    ),
    "pairs": Job("mrpc", pairs, "f1", "test_run_on_ranks.py"),
    "answers in a text": Job("squad", squad, "f1", "test_answers.py"),
    "names": Job("ner", entities, "f1", "test_token_classification.py"),
    "domain text, encoder": Job("mlm", None, "perplexity", "test_masked_lm.py"),
    "domain text, decoder": Job(
        "gpt2-shakespeare", None, "perplexity", "test_run_on_ranks.py", "",
        (SMALL, "training.num_train_epochs=2"),
    ),
    "rewriting": Job(
        "seq2seq", paraphrases, "chrf", "test_seq2seq_lm.py", "config:t5",
        (
            "from_scratch=true", T5, "tokenizer=encoder", "training.learning_rate=2e-3",
            "training.num_train_epochs=10",
        ),
    ),
    "a smaller model": Job(
        "distill", question_words, "accuracy", "test_text_distillation.py", "encoder",
        ("teacher=classes",),
    ),
    "search": Job("embed", passages, "ndcg_at_10", "test_sentence_transformers.py"),
    "reordering": Job(
        "rerank", lambda data, split: passages(data, split, 3), "ndcg_at_10", "test_text_ranking.py"
    ),
    "a chat model": Job(
        "sft", answers, "perplexity", "test_instruction_tuning.py", "domain text, decoder",
        ("chat_template=false", "training.learning_rate=5e-4", "training.num_train_epochs=3"),
    ),
    "preferred answers": Job(
        "dpo", preferences, "accuracy", "test_preference_tuning.py", "a chat model",
        ("chat_template=false", "training.learning_rate=1e-4"),
    ),
}  # fmt: skip


def folder_of(job: Job, data: Path, folder: Path) -> Path:
    """Write the job's data as a user would have it."""
    folder.mkdir()
    if job.rows is None:
        shutil.copy(data / "shakespeare/input.txt", folder)
        return folder
    for split, most in (("train", TRAIN), ("validation", VALIDATION)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for number, row in enumerate(job.rows(data, split)):
                if number == most:
                    break
                file.write(json.dumps(row) + "\n")
    return folder


def run(name: str, home: Home, data: Path, models: dict[str, str], folder: Path) -> Row:
    """Run a job's command; return its seconds and its metrics.

    Raises:
        SystemExit: the command fails.
    """
    job = JOBS[name]
    words = ["train", job.recipe, "--data", str(folder_of(job, data, folder / "data"))]
    if job.model:
        words += ["--model", models.get(job.model, job.model)]
    for field in job.fields:
        key, _, value = field.partition("=")
        words.append(f"{key}={models.get(value, value)}")
    for cache in ("models", "data", "cache/tokens"):
        shutil.rmtree(home.prefix / cache, ignore_errors=True)
    began = time.monotonic()
    done = home.run(*words, "--json")
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    models[name] = str(folder.parent / name.replace(" ", "-"))
    shutil.copytree(found["model"], models[name])
    return {
        "job": name, "recipe": job.recipe, "seconds": round(seconds, 1),
        "training": round(found["seconds"], 1), "metric": job.metric,
        "value": found["metrics"].get(job.metric), "metrics": found["metrics"], "equal": job.equal,
    }  # fmt: skip


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    models = {"encoder": str(options.encoder.absolute())}
    results: dict[str, Any] = {"machine": cpu(), "jobs": []}
    data, kept = options.data.absolute(), options.home and options.home.absolute()
    with tempfile.TemporaryDirectory() as folder, this_machine(kept) as home:
        for number, name in enumerate(options.jobs or JOBS):
            place = Path(folder) / str(number)
            place.mkdir()
            results["jobs"].append(run(name, home, data, models, place))
            print(json.dumps(results["jobs"][-1]), flush=True)
            write(options.results, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
