"""Whole runs with tiny models: a folder with data, a folder with a model, and a job with both."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.job import Job
from tests.engine.jobs import CLASSES, OPTIONS, make_job
from tests.engine.models import SPECIAL, VOCABULARY, make_model, make_tokenizer

WORDS = [f"w{i}" for i in range(len(SPECIAL), VOCABULARY)]
Row = dict[str, Any]


def labelled(count: int, seed: int, label: Callable[[list[int]], Any]) -> list[Row]:
    """Write texts of unequal lengths; `label` is a function of the numbers of a text's words."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        chosen = [draw.randrange(len(WORDS)) for _ in range(draw.randrange(3, 30))]
        rows.append({"text": " ".join(WORDS[i] for i in chosen), "label": label(chosen)})
    return rows


def classes(count: int, seed: int) -> list[Row]:
    return labelled(count, seed, lambda words: words[0] % CLASSES)


def sets_of_classes(count: int, seed: int) -> list[Row]:
    """Return none, one or two of three classes."""
    return labelled(
        count, seed, lambda words: ["a"] * (words[0] % 2) + ["bc"[words[1] % 2]] * (words[2] % 2)
    )


def numbers(count: int, seed: int) -> list[Row]:
    return labelled(count, seed, lambda words: words[0] / len(WORDS))


def tags(count: int, seed: int) -> list[Row]:
    """Tag words that begin with the first words as entities, with the words after them."""
    rows = []
    for row in classes(count, seed):
        words = str(row["text"]).split()
        first = [word in WORDS[:40] for word in words]
        found = ["B-A" if one else "O" for one in first]
        for number in range(1, len(words)):
            if first[number - 1] and not first[number]:
                found[number] = "I-A"
        rows.append({"tokens": words, "tags": found})
    return rows


def completions(count: int, seed: int) -> list[Row]:
    """Write prompts with completions of one to eight words, which repeat the last word."""
    rows = []
    for number, row in enumerate(classes(count, seed)):
        prompt = str(row["text"])
        last = prompt.split()[-1]
        rows.append({"prompt": f"{prompt} ", "completion": " ".join([last] * (1 + number % 8))})
    return rows


def summaries(count: int, seed: int) -> list[Row]:
    """Write documents; a summary repeats the last word one to four times."""
    rows = []
    for row in classes(count, seed):
        words = str(row["text"]).split()
        last = words[-1] = WORDS[len(words) % 5]
        rows.append(
            {"document": " ".join(words), "summary": " ".join([last] * (len(words) % 4 + 1))}
        )
    return rows


def triplets(count: int, seed: int) -> list[Row]:
    """Write triplets; a text is right if it begins with one of the first words, for any query."""
    draw = random.Random(seed)
    return [
        {
            "query": f"{draw.choice(WORDS)} {number}",
            "positive": f"{draw.choice(WORDS[:9])} {draw.choice(WORDS)}",
            "negatives": [f"{draw.choice(WORDS[50:])} {draw.choice(WORDS)}" for _ in range(2)],
        }
        for number in range(count)
    ]


def preferences(count: int, seed: int) -> list[Row]:
    """Chosen answers repeat the prompt's last word."""
    rows = []
    for row in classes(count, seed):
        prompt = str(row["text"])
        last = prompt.split()[-1]
        rows.append({"prompt": f"{prompt} ", "chosen": f"{last} {last}", "rejected": "w5"})
    return rows


def judgements(count: int, seed: int) -> list[Row]:
    """Liked answers repeat the prompt's last word."""
    rows: list[Row] = []
    for number, row in enumerate(preferences(count, seed)):
        answer = row["rejected"] if number % 3 else row["chosen"]
        rows.append({"prompt": row["prompt"], "completion": answer, "label": number % 3 == 0})
    return rows


def questions(count: int, seed: int) -> list[Row]:
    """Write contexts longer than a feature; every fourth question has no answer."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        words = draw.sample(WORDS, 25)
        answer, context = draw.choice(words), " ".join(words)
        found = {"text": [answer], "answer_start": [f"{context} ".index(f"{answer} ")]}
        nothing: Row = {"text": [], "answer_start": []}
        asked = f"{answer} {draw.choice(WORDS)}"
        answers = found if number % 4 else nothing
        rows.append({"question": asked, "context": context, "answers": answers})
    return rows


def write_data(folder: Path, splits: Mapping[str, Sequence[Row]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return str(folder)


def write_model(folder: Path, kind: str, task: str, head: bool = False) -> str:
    """Write a model for a task, with or without its head, and its tokenizer."""
    model = make_model(kind, task)
    (model if head else model.base_model).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def make_whole_job(
    run_dir: Path,
    task: str,
    data: str,
    model: str,
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    **training: Any,
) -> Job:
    """Return a job for `prepare` and the ranks, with some fields changed; see jobs.make_job."""
    job = make_job(run_dir, task, **training)
    changed = replace(
        job.recipe, data=data, model=model, from_scratch=model.startswith("config:"),
        options=replace(OPTIONS[task], **(options or {})), **(recipe or {}),
    )  # fmt: skip
    return replace(job, prefix=run_dir.parent, recipe=changed)
