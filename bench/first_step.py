"""Time from Enter to the first step on a warm cluster, compared with plain Python.

    .venv-dev/bin/python -m bench.first_step --data DIR --encoder DIR [--turns N] [--prefix DIR]
        [--ftcluster PROGRAM] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. DIR has the folder mrpc; --encoder is
a small BERT with its tokenizer, such as all-MiniLM-L6-v2.

Plain Python imports torch and transformers, loads the model and does one step on the first 32 pairs
of MRPC's training file, padded to the longest pair, in the precision of a run. `ftcluster train`
does one step of the recipe mrpc with the same model and data, and of the recipe quickstart,
whose model is all-MiniLM-L6-v2: `first` with a recipe that the cluster has not seen, `again` with a
recipe that it has. Both recipes are compared with the same plain Python, although quickstart
generates its data and has two ranks. Runs alternate, and results are medians in seconds. A run's
events report when ranks were started, had torch, and had model and data. `predict` (40 rows),
`plan`, `train --dry-run` and `ps` are timed as a whole.

To compare two versions, set up the other version in another folder, and name its program and folder
with --ftcluster and --prefix.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machines import precision
from bench.runs import ROOT, machine, write

PLAIN = """
import itertools, json, sys, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with open(sys.argv[2], encoding="utf-8") as lines:
    rows = [json.loads(line) for line in itertools.islice(lines, 32)]
texts = [[row[f"sentence{number}"] for row in rows] for number in (1, 2)]
batch = tokenizer(*texts, return_tensors="pt", padding=True)
with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[3] == "bf16"):
    model(**batch, labels=torch.tensor([row["label"] for row in rows])).loss.backward()
optimizer.step()
"""
PARTS = {"phase": "ranks started", "placement": "torch there", "start": "model and data there"}


def main() -> int:
    """Measure, print a table and one JSON document, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--ftcluster", type=Path, default=ROOT / ".venv/bin/ftcluster")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    encoder = options.encoder.absolute()
    mrpc = ["mrpc", "--data", str((options.data / "mrpc").absolute()), "--model", str(encoder)]
    recipes = {"mrpc": mrpc, "quickstart": ["quickstart"]}
    found: dict[str, list[dict[str, float]]] = {}
    # A recipe with another `max_length` counts as new. No pair is longer than 128 tokens.
    lengths = itertools.count(128 + time.time_ns() % 256)
    with tempfile.TemporaryDirectory() as folder:
        rows = (options.data / "mrpc/validation.jsonl").read_text(encoding="utf-8").splitlines()
        (Path(folder) / "rows.jsonl").write_text("\n".join(rows[:40]) + "\n", encoding="utf-8")
        model = ""
        for turn in range(options.turns + 1):  # the first turn fills caches and does not count
            length = f"max_length={next(lengths)}"
            pairs = options.data / "mrpc/train.jsonl"
            python = options.prefix / "current/bin/python"
            plain = [python, "-c", PLAIN, encoder, pairs, precision()]
            one = {"plain Python": {"first step": seconds(plain)}}
            for (recipe, words), name in itertools.product(recipes.items(), ("first", "again")):
                command = [options.ftcluster, "train", *words, length]
                one[f"{recipe}, {name}"], model = trained(command, options.prefix)
            for words in (["train", *mrpc, "--dry-run"], ["plan"], ["ps"],
                          ["predict", "--model", model, "--data", f"{folder}/rows.jsonl",
                           "--output", f"{folder}/{turn}.jsonl"]):  # fmt: skip
                name = "train --dry-run" if "--dry-run" in words else words[0]
                one[name] = {"whole": seconds([options.ftcluster, *words])}
            for name, parts in one.items() if turn else ():
                found.setdefault(name, []).append(parts)
                print(name, parts, file=sys.stderr, flush=True)
    medians = {
        name: {part: statistics.median(turn[part] for turn in turns) for part in turns[0]}
        for name, turns in found.items()
    }
    results: dict[str, Any] = {"machine": machine(options.prefix, 2), "seconds": medians}
    write(options.results, results | {"turns": found})
    print(table(medians))
    return 0


def seconds(command: Sequence[str | Path]) -> float:
    """Return the seconds of a program.

    Raises:
        SystemExit: the program failed.
    """
    # without PYTHONPATH, so that a host on this machine runs its own stack and not this checkout
    variables = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return time.monotonic() - began


def trained(command: Sequence[str | Path], prefix: Path) -> tuple[dict[str, float], str]:
    """Return the seconds until each stage of a training of one step, and the path of its model."""
    began = time.time()  # the clock that events use
    done = subprocess.run(
        [*command, "training.max_steps=1", "training.eval_strategy=no", "--json"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    result = json.loads(done.stdout)
    at: dict[str, float] = {}
    with (prefix / "runs" / result["run"] / "events.jsonl").open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            at.setdefault(event["event"], event["time"] - began)
    parts = {part: at[event] for event, part in PARTS.items()}
    return parts | {"first step": at["step"]}, result["model"]


def table(medians: dict[str, dict[str, float]]) -> str:
    """Return the results as a Markdown table."""
    columns = [*PARTS.values(), "first step"]
    plain = medians["plain Python"]["first step"]
    lines = [f"| seconds | {' | '.join(columns)} | to plain Python |", "|---" * 6 + "|"]
    for name, parts in medians.items():
        if "first step" in parts:
            cells = [f"{parts[part]:.1f}" if part in parts else "" for part in columns]
            lines.append(f"| {name} | {' | '.join(cells)} | {parts['first step'] / plain:.2f} |")
    whole = [
        f"{name} {parts['whole']:.2f} s" for name, parts in medians.items() if "whole" in parts
    ]
    return "\n".join([*lines, "", ", ".join(whole)])


if __name__ == "__main__":
    sys.exit(main())
