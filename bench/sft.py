"""Instruction tuning: the engine against TRL's SFTTrainer, side by side.

    .venv-dev/bin/python -m bench.sft --data DIR --site DIR [--shape NAME] [--lora-r N]
        [--variants NAME ...] [--turns N] [--steps N] [--seeds N] [--batch N] [--rate RATE]
        [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR of --data has the folder squad: a question is the prompt, its context the completion.
--site is a folder with TRL and PEFT for the stack's torch:

    pip install --target DIR --no-deps trl peft

The model has the shape of a published one (bench.sft_run.SHAPES), random weights and a byte-level
BPE tokenizer of the data with ChatML as its template. Both train it on the same conversations with
the same loss, batch and rate in bf16, without gradient checkpointing; each run is a process, runs
are interleaved, numbers are medians. Tokens are those of conversations, without padding. `ours`
runs with tcmalloc, as planned runs do, and so does `trl, tuned`, whose batches are grouped by
length as well. --seeds also trains with both for --steps steps, and measures both with the same
code. Variants with NF4 need --lora-r; where no variant is TRL's, the others are compared with the
first one.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.runs import arguments, environment, machine, run_module, write

VARIANTS: dict[str, dict[str, Any]] = {
    "trl": {"engine": "trl"},
    "trl, tuned": {"engine": "trl", "tcmalloc": True, "group_by_length": True},
    "ours": {"engine": "ours", "tcmalloc": True},
    # only with adapters (--lora-r)
    "trl, NF4": {"engine": "trl", "tcmalloc": True, "load_in_4bit": True},
    "ours, NF4": {"engine": "ours", "tcmalloc": True, "load_in_4bit": True},
}
USUAL = ("trl", "trl, tuned", "ours")


@dataclass(frozen=True)
class Runner:
    """A runner of trainings of one model on one set of conversations; see bench.sft_run."""

    prefix: Path
    site: Path
    folder: Path
    threads: int
    common: dict[str, Any]

    def run(self, **options: Any) -> dict[str, Any]:
        """Run one training, or another action that the options request."""
        variables = environment(self.threads, options.get("tcmalloc", False), self.site)
        options = {**self.common, **options}
        return run_module("bench.sft_run", self.prefix, self.folder, options, variables)


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = arguments(__doc__, (), threads=2)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--lora-r", type=int)
    parser.add_argument("--variants", nargs="+", default=USUAL, choices=VARIANTS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-4)
    options = parser.parse_args()
    common = {
        "shape": options.shape, "lora_r": options.lora_r, "batch": options.batch,
        "steps": options.steps, "rate": options.rate,
    }  # fmt: skip
    site = options.site.absolute()
    of_machine = {**machine(options.prefix, options.threads, site), "precision": "bf16"}
    results: dict[str, Any] = {"machine": of_machine, **common}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options.prefix, site, Path(folder), options.threads, common)
        runner.run(engine="make", squad=str(options.data.absolute() / "squad"))
        if options.turns:
            results["speed"] = measure(runner, options.variants, options.turns)
            print(table(results["speed"]), flush=True)
            write(options.results, results)
        for seed in range(1, options.seeds + 1):
            for name in ("trl", "ours"):
                loss = runner.run(**VARIANTS[name], seed=seed, evaluate=True)["loss"]
                print(f"{name}, seed {seed}: {loss:.4f}", file=sys.stderr, flush=True)
                results.setdefault("loss", {}).setdefault(name, []).append(loss)
            write(options.results, results)
        if options.seeds:
            ours, theirs = (statistics.mean(results["loss"][name]) for name in ("ours", "trl"))
            print(f"\nloss: ours {ours:.4f}, trl {theirs:.4f} ({ours / theirs - 1:+.2%})")
    return 0


def measure(runner: Runner, variants: list[str], turns: int) -> dict[str, dict[str, Any]]:
    """Run each variant `turns` times, interleaved; return the medians by name."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(turns):
        for name in variants:
            run = runner.run(**VARIANTS[name])
            found.setdefault(name, []).append(run)
            print(f"{name}: {run}", file=sys.stderr, flush=True)
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    theirs = [one for name, one in medians.items() if VARIANTS[name]["engine"] == "trl"]
    stock = theirs or [medians[variants[0]]]
    keys = {"ratio": "tokens_per_second", "cpu_ratio": "tokens_per_cpu_second"}
    limit = statistics.median(run["products"] for runs in found.values() for run in runs)
    return {
        name: {
            **one,
            "share_of_limit": one["tokens_per_second"] * one["flop_per_token"] / limit,
            **{ratio: one[key] / max(other[key] for other in stock) for ratio, key in keys.items()},
            "all": found[name],
        }
        for name, one in medians.items()
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """Format the variants as a Markdown table."""
    lines = ["", "| sft | tokens/s | ratio | per CPU second | ratio | peak | products alone "
             "| of their limit |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {name} | {one['tokens_per_second']:.0f} | {one['ratio']:.2f} | "
        f"{one['tokens_per_cpu_second']:.0f} | {one['cpu_ratio']:.2f} | "
        f"{one['peak_bytes'] / 1e9:.1f} GB | {one['products'] / 1e12:.2f} TFLOP/s | "
        f"{one['share_of_limit']:.0%} |"
        for name, one in found.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
