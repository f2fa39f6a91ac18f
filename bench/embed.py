"""Sentence embeddings and rerankers: the engine against sentence-transformers, side by side.

    .venv-dev/bin/python -m bench.embed [--task rerank] --data DIR --encoder DIR --site DIR
        [--precision fp32] [--variants NAME ...] [--turns N] [--steps N] [--seeds N]
        [--first-seed N] [--batch N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR of --data has the folder squad,
whose questions and contexts are the pairs; --encoder is a model with its tokenizer, such as
all-MiniLM-L6-v2. --site is a folder with sentence-transformers for the stack's torch:

    pip install --target DIR --no-deps sentence-transformers accelerate psutil scikit-learn scipy
        joblib threadpoolctl cloudpickle narwhals

Both train the same model on the same pairs with the same loss, batch, length and learning rate.
Embeddings use MultipleNegativesRankingLoss with scale 20. A reranker (CrossEncoderTrainer) uses
BinaryCrossEntropyLoss: the label is 1 for a question with its own context, and 0 with another
context. Each run is a process, runs are interleaved, and results are medians. `stock` uses bf16
unless --precision is fp32, and for embeddings the batch sampler NO_DUPLICATES. `stock, fp32` is the
same without bf16. `tuned` adds the allocator of planned runs, which `ours` uses too. --variants
leaves out the others; `ours` is always measured. --seeds also trains an epoch with ours and with
stock in turns, measures both models with the same code, and measures the speed of the whole epoch.
--turns 0 skips everything else.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import precision
from bench.quality import quality_table
from bench.runs import Bench, arguments, environment, machine, run_module, write

VARIANTS = ("stock", "stock, fp32", "tuned", "ours")
RECIPES = {
    "embed": ("embed", "model={encoder}", "data={data}/squad"),
    "rerank": ("rerank", "model={encoder}"),
}


def variants(precision: str) -> dict[str, dict[str, Any]]:
    """Return the variants by name: arguments of `Runner.run`."""
    found: dict[str, dict[str, Any]] = {"stock": {"engine": "stock", "precision": precision}}
    if precision != "fp32":
        found["stock, fp32"] = {"engine": "stock", "precision": "fp32"}
    for name, engine in (("tuned", "stock"), ("ours", "ours")):
        found[name] = {"engine": engine, "precision": precision, "tcmalloc": True}
    return found


@dataclass(frozen=True)
class Runner:
    """A runner of trainings from one prepared run; see bench.embed_run."""

    bench: Bench
    site: Path
    run_dir: Path

    def run(self, **options: Any) -> dict[str, Any]:
        """Run one training."""
        variables = environment(self.bench.threads, options.get("tcmalloc", False), self.site)
        return run_module("bench.embed_run", self.bench.prefix, self.run_dir, options, variables)


def main() -> int:
    """Measure, print the tables and write the results; return the exit code."""
    parser = arguments(__doc__, (), threads=2)
    parser.add_argument("--task", choices=RECIPES, default="embed")
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=precision())
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    bench = Bench(
        options.prefix, options.data.absolute(), options.encoder.absolute(), options.threads
    )
    site = options.site.absolute()
    of_machine = {
        **machine(options.prefix, options.threads, site), "precision": options.precision
    }  # fmt: skip
    chosen = variants(options.precision)
    results: dict[str, Any] = {
        "machine": of_machine, "task": options.task, "batch": options.batch
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        recipe = *RECIPES[options.task], f"batch_size={options.batch}"
        if options.task == "rerank":
            recipe = *recipe, f"data={labelled_pairs(bench.data / 'squad', Path(folder) / 'pairs')}"
        run_dir = bench.prepare(Path(folder) / "run", recipe)
        runner = Runner(bench, site, run_dir)
        if options.turns:
            timed = {
                name: of for name, of in chosen.items() if name in {*options.variants, "ours"}
            }  # fmt: skip
            results["speed"] = measure(runner, timed, options.turns, options.steps)
            print(table(options.task, results["speed"]), flush=True)
            write(options.results, results)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            found = results.setdefault("quality", {})
            for name in ("stock", "ours"):
                done = runner.run(**chosen[name], seed=seed, evaluate=True)
                values = done.pop("metrics") | done
                print(f"{name}, seed {seed}: {values}", file=sys.stderr, flush=True)
                for metric, value in values.items():
                    found.setdefault(name, {}).setdefault(metric, []).append(value)
            write(options.results, results)
        if options.seeds:
            print(quality_table("squad", results["quality"]), flush=True)
    return 0


def labelled_pairs(squad: Path, folder: Path) -> Path:
    """Write each question with its own context and with the previous row's; return the folder."""
    folder.mkdir()
    for split in ("train", "validation"):
        pairs, other = [], ""
        for line in (squad / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            own = row["context"]
            if other and other != own:
                pairs += [(row["question"], own, 1), (row["question"], other, 0)]
            other = own
        text = "".join(
            json.dumps(dict(zip(("query", "text", "label"), pair, strict=True))) + "\n"
            for pair in pairs
        )
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def measure(
    runner: Runner, chosen: dict[str, dict[str, Any]], turns: int, steps: int
) -> dict[str, dict[str, Any]]:
    """Run each variant `turns` times, interleaved; return the medians by name."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for _ in range(turns):
        for name, options in chosen.items():
            done = runner.run(**options, steps=steps)
            found[name].append(done)
            print(f"{name}: {done['pairs_per_second']:.2f} pairs/s", file=sys.stderr)
    ratios = {
        # relative to `ours` in the same turn
        f"{short}times_of_ours": {
            name: statistics.median(
                ours[f"pairs_per_{short}second"] / one[f"pairs_per_{short}second"]
                for one, ours in zip(runs, found["ours"], strict=True)
            )
            for name, runs in found.items()
        }
        for short in ("", "cpu_")
    }
    limit = statistics.median(one["products"] for runs in found.values() for one in runs)
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    return {
        name: {
            **medians[name],
            **{key: of[name] for key, of in ratios.items()},
            "share_of_limit": medians[name]["pairs_per_second"]
            * medians[name]["flop_per_pair"]
            / limit,
            "all": runs,
        }
        for name, runs in found.items()
    }


def table(task: str, found: dict[str, dict[str, Any]]) -> str:
    """Format the variants as a Markdown table."""
    lines = [
        "",
        f"| {task} | pairs/s | speed-up of ours | pairs/s of CPU time | speed-up in CPU time "
        "| share of the matmul limit |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, one in found.items():
        lines.append(
            f"| {name} | {one['pairs_per_second']:.2f} | {one['times_of_ours']:.2f} | "
            f"{one['pairs_per_cpu_second']:.2f} | {one['cpu_times_of_ours']:.2f} | "
            f"{one['share_of_limit']:.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
