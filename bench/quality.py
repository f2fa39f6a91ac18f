"""Final model quality by seed: the engine against transformers' Trainer.

    .venv-dev/bin/python -m bench.quality --data DIR --encoder DIR --runs FILE [CASE ...]
        [--way WAY ...] [--precision fp32|bf16 ...] [--seeds N] [--threads N] [--prefix DIR]
        [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR has the folders mrpc, squad and shakespeare; --encoder is a small BERT with its
tokenizer, such as all-MiniLM-L6-v2. `distilbert` is DistilBERT with the encoder's weights
(bench.distilbert), `clm` a small GPT-2 from random weights.

`trainer` is Trainer with dynamic padding and batches grouped by length (`tuned` of bench.engine).
Both train the same recipe from the same weights, in fp32, and in bf16 where the CPU has
instructions for it; the same code evaluates both in fp32. The machine may be busy: only metrics are
compared. Each training is a process that appends a line to FILE. A training that is in FILE is not
repeated, so the command can be started again on the same machine, and `--seeds 0` prints the table
of FILE alone.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from bench.curves import CASES as CURVES
from bench.curves import done, mean_and_spread, spread
from bench.machines import Lines, precision
from bench.runs import Bench, arguments, environment, machine, write

# A part of SQuAD that takes hours on two cores: 2,000 questions, with features of 192 tokens.
TUNED = {
    "mrpc": ("mrpc", "model={encoder}", "data={data}/mrpc"),
    "squad": ("squad", "model={encoder}", "data={data}/squad", "batch_size=16", "max_length=192",
              "doc_stride=64", "training.learning_rate=3e-4"),
    # the same values as for MRPC, which is as small as the used part of QQP
    "qqp": ("qqp", "model={encoder}", "data={data}/qqp", "batch_size=32",
            "training.learning_rate=1e-4"),
}  # fmt: skip
TUNED_ROWS = {"mrpc": 3668, "squad": 2000, "qqp": 6000}
CASES: dict[str, tuple[str, ...]] = {
    "mrpc": TUNED["mrpc"],
    "distilbert": ("mrpc", "model={encoder}/distilbert", "data={data}/mrpc"),
    "squad": TUNED["squad"],
    "clm": (*CURVES["gpt2"], "training.max_steps=300"),
}
WAYS: dict[str, dict[str, Any]] = {
    "trainer": {"engine": "stock", "tuned": True, "tcmalloc": True},
    "ours": {"engine": "ours", "tcmalloc": True},
}
# variants to find the causes of differences
SWITCHED: dict[str, dict[str, Any]] = {
    "trainer, any order": WAYS["trainer"] | {"tuned": "random"},
    "ours, any order": WAYS["ours"] | {"leave_out": ["group_by_length"]},
    "ours, padding not masked": WAYS["ours"] | {"unmasked": True},
}
PRECISIONS = ("fp32", "bf16")

Run = dict[str, Any]


def main() -> int:
    """Do the missing trainings and print the table; return the exit code."""
    parser = arguments(__doc__, CASES, threads=1)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--way", action="append", choices=WAYS | SWITCHED)
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    computed = options.precision or PRECISIONS[: 2 if precision() == "bf16" else 1]
    wanted = [
        {"case": case, "seed": seed, "precision": kind, "way": way, "recipe": " ".join(CASES[case])}
        for case, seed, kind, way in product(
            options.cases or CASES, range(1, options.seeds + 1), computed, options.way or WAYS
        )
    ]
    runs = Lines(options.runs)
    missing = [key for key in wanted if not done(key, runs.read())]
    here = machine(options.prefix, options.threads) if missing else {}
    if missing:
        runs.check(here)
    with tempfile.TemporaryDirectory() as folder:
        bench = prepared(Path(folder), options)
        for number, key in enumerate(missing):
            run_dir = bench.prepare(Path(folder) / str(number), CASES[key["case"]])
            found = bench.run(
                run_dir, **(WAYS | SWITCHED)[key["way"]], precision=key["precision"],
                seed=key["seed"], evaluate=True,
            )  # fmt: skip
            run = key | {name: found[name] for name in ("metrics", "steps", "seconds")}
            runs.add([run], here)
            print(run, file=sys.stderr, flush=True)
            shutil.rmtree(run_dir)
    compared = summary([run for run in runs.read() if run["case"] in CASES])
    print(table(compared))
    write(options.results, {"machine": runs.machine(), "quality": compared})
    return 0


def prepared(folder: Path, options: Any) -> Bench:
    """Return the runner of the trainings, with its data and models in `folder`."""
    data, encoder = folder / "data", folder / "encoder"
    for name in ("mrpc", "squad"):
        first_rows(options.data.absolute() / name, data)
    (data / "shakespeare").symlink_to(options.data.absolute() / "shakespeare")
    shutil.copytree(options.encoder, encoder)
    subprocess.run(
        [options.prefix / "current/bin/python", "-m", "bench.distilbert", encoder],
        env=environment(options.threads), check=True,
    )  # fmt: skip
    return Bench(options.prefix, data, encoder, options.threads)


def first_rows(source: Path, folder: Path) -> Path:
    """Copy a case's data into `folder`, with the first TUNED_ROWS rows of its training split."""
    copy = folder / source.name
    shutil.copytree(source, copy)
    rows = (source / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "train.jsonl").write_text("".join(rows[: TUNED_ROWS[source.name]]), encoding="utf-8")
    return folder


def summary(runs: list[Run]) -> list[Run]:
    """Return the values of both ways by case, precision and metric, and the difference of means."""
    values: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for run in runs:
        for metric, value in run["metrics"].items():
            place = values.setdefault((run["case"], run["precision"], metric), {})
            place.setdefault(run["way"], []).append(value)
    found = []
    for (case, kind, metric), ways in values.items():
        one: Run = {"case": case, "precision": kind, "metric": metric, **ways}
        if ways.keys() >= WAYS.keys() and min(len(ways[way]) for way in WAYS) > 1:
            theirs, ours = ways["trainer"], ways["ours"]
            one["difference"] = statistics.mean(ours) - statistics.mean(theirs)
            squares = [spread(of) ** 2 / len(of) for of in (theirs, ours)]
            one["standard_error"] = sum(squares) ** 0.5
            one["deviation"] = ((spread(theirs) ** 2 + spread(ours) ** 2) / 2) ** 0.5
        found.append(one)
    return found


def table(found: list[Run]) -> str:
    """Format means and deviations over the seeds, and whether the means agree, as Markdown."""
    lines = ["| case | seeds | metric | trainer | ours | ours - trainer | |", "|---" * 7 + "|"]
    for one in found:
        seeds = " and ".join(str(count) for count in {len(one[w]) for w in WAYS if w in one})
        cells = [mean_and_spread(one.get(way, []), ".4g") for way in WAYS]
        apart = ""
        if "difference" in one:
            difference, error = one["difference"], one["standard_error"]
            apart = (
                f"{difference:+.2g} ± {error:.2g} | {verdict(difference, error, one['deviation'])}"
            )
        lines.append(
            f"| {one['case']}, {one['precision']} | {seeds} | {one['metric']} "
            f"| {' | '.join(cells)} | {apart or ' | '} |"
        )
    return "\n".join(lines)


def verdict(difference: float, error: float, deviation: float) -> str:
    """Describe how far two means are apart; a third of equal means would differ by more."""
    if abs(difference) <= error:
        return "within a standard error"
    return "within a deviation" if abs(difference) <= deviation else "apart"


def quality_table(case: str, found: dict[str, dict[str, list[float]]]) -> str:
    """Format mean and standard deviation of each metric by way as a Markdown table."""
    metrics = list(next(iter(found.values())))
    lines = ["", f"| {case} | {' | '.join(metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    for name, values in found.items():
        cells = " | ".join(mean_and_spread(values[metric], ".3f") for metric in metrics)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
