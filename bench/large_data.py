"""Memory of a training by the number of its rows, also for data that do not fit into memory.

    .venv-dev/bin/python -m bench.large_data [--rows N ...] [--words N] [--limit MB]
        [--format jsonl|json] [--draw | --search] [--folder DIR] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. The engine is this checkout's.

Generates a classification data set of N rows of `--words` words, tokenizes it, reads an epoch's
batches, and trains a tiny model for a few steps. Prints the peak of the anonymous memory of both
processes, and the additional bytes for each row. With --limit, the process that reads and tokenizes
may not allocate more private memory than this, so that the data can be larger than its memory.
With --format json, a set is a single JSON list. With --draw, the data have no validation set, so
that its rows are drawn. With --search, the rows are the texts of a corpus in BEIR's format, and the
second process evaluates an embedding model, which searches the corpus for 100 queries.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.machines import cpu
from bench.runs import Bench, environment, run_module, write

WORDS = [f"word{number:036}" for number in range(5000)]  # as in large_data_run
QUERIES = 100  # number of queries of a search
RECIPE = (
    "model=config:bert", "from_scratch=true", "tokenizer={encoder}", "data={data}",
    "config_overrides={{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
    "intermediate_size: 64}}",
    "batch_size=32", "max_length=512", "training.num_train_epochs=1", "training.eval_strategy=no",
)  # fmt: skip


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--limit", type=int, default=0, metavar="MB")
    parser.add_argument("--format", choices=("jsonl", "json"), default="jsonl")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--draw", action="store_true")
    kind.add_argument("--search", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        **cpu(), "limit": options.limit * 10**6, "words": options.words, "format": options.format,
        "draws": options.draw, "searches": options.search, "trainings": [],
    }  # fmt: skip
    for count in options.rows:
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            results["trainings"].append(measure(folder, count, options))
        finally:
            shutil.rmtree(folder)
        print(json.dumps(results["trainings"][-1]), file=sys.stderr)
        write(options.results, results)
    print(table(results))
    return 0


def measure(folder: Path, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return sizes, times and memory of one training or evaluation."""
    data, tokenizer = folder / "data", folder / "tokenizer"
    make = generate_corpus if options.search else generate
    text_bytes = make(data, count, options)
    bench = Bench(folder / "prefix", data, tokenizer, 1)
    run_dir = bench.prepare(folder / "run", ("embed" if options.search else "classify", *RECIPE))
    measured: dict[str, Any] = {"rows": count, "text_bytes": text_bytes}
    for part in ("prepare", "evaluate" if options.search else "train"):
        limit = options.limit * 10**6 if part == "prepare" else 0  # torch needs more to train
        wanted = {"part": part, "limit": limit}
        found = run_module("bench.large_data_run", options.prefix, run_dir, wanted, environment(1))
        measured["token_bytes"] = found.pop("token_bytes", measured.get("token_bytes"))
        measured[part] = found
    return measured


def generate(folder: Path, count: int, options: argparse.Namespace) -> int:
    """Write a data set of `count` rows for the training; return the number of bytes."""
    folder.mkdir(parents=True)
    draw, words = random.Random(count), options.words
    is_list = options.format == "json"
    sets = (("train", count),) if options.draw else (("train", count), ("validation", 100))
    for split, rows in sets:
        with (folder / f"{split}.{options.format}").open("w", encoding="utf-8") as file:
            file.write("[" * is_list)
            for number in range(rows):
                length = draw.randint(words // 2, words + words // 2)
                text = " ".join(draw.choices(WORDS, k=length))
                file.write("," * (is_list and number > 0))
                file.write(json.dumps({"text": text, "label": number % 2}) + "\n")
            file.write("]" * is_list)
    return sum(path.stat().st_size for path in folder.iterdir())


def generate_corpus(folder: Path, count: int, options: argparse.Namespace) -> int:
    """Write a corpus of `count` texts in BEIR's format; return the number of bytes."""
    (folder / "qrels").mkdir(parents=True)
    draw, words = random.Random(count), options.words
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            text = " ".join(draw.choices(WORDS, k=draw.randint(words // 2, words + words // 2)))
            file.write(json.dumps({"_id": f"d{number}", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for number in range(QUERIES):
            query = {"_id": f"q{number}", "text": " ".join(draw.choices(WORDS, k=8))}
            file.write(json.dumps(query) + "\n")
    for split in ("train", "dev"):
        judged = [f"q{number}\td{draw.randrange(count)}\t1" for number in range(QUERIES)]
        lines = "\n".join(["query-id\tcorpus-id\tscore", *judged])
        (folder / f"qrels/{split}.tsv").write_text(f"{lines}\n", encoding="utf-8")
    return (folder / "corpus.jsonl").stat().st_size


def table(results: dict[str, Any]) -> str:
    """Format the results as Markdown, with the bytes per row between consecutive trainings."""
    part, doing = ("evaluate", "searching") if results["searches"] else ("train", "training")
    lines = [
        f"| rows | text, MB | tokens, MB | tokenizing: peak, MB | {doing}: peak, MB |",
        "|---|---|---|---|---|",
    ]
    for run in results["trainings"]:
        sizes = (
            run["text_bytes"],
            run["token_bytes"],
            run["prepare"]["peak"],
            run[part]["peak"],
        )
        lines.append(f"| {run['rows']:,} | {' | '.join(f'{size / 1e6:,.0f}' for size in sizes)} |")
    first, last = results["trainings"][0], results["trainings"][-1]
    if rows := last["rows"] - first["rows"]:
        for of_part in ("prepare", part):
            more = (last[of_part]["peak"] - first[of_part]["peak"]) / rows
            lines.append(f"\n{of_part}: {more:.0f} bytes for each row")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
