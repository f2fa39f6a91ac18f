"""Training curves of the engine against plain transformers, in bf16 and in fp32.

    .venv-dev/bin/python -m bench.curves --data DIR --runs FILE [CASE ...] [--way WAY ...]
        [--seeds N] [--steps N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. DIR has the folders mrpc, squad and
shakespeare. The engine is this checkout's.

Trains small models from random weights with several seeds: with this engine in bf16, and with
transformers and torch's AdamW in bf16 (autocast) and in fp32. With the same seed all three have the
same weights, batches, schedule and dropout rate. Each run is a process that appends a line to FILE.
A run that is in FILE is not repeated, so the command can be started again on the same machine.
Prints the final training loss and the validation loss, mean and standard deviation over the seeds.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machines import Lines
from bench.runs import Bench, arguments, environment, machine, run_module, write

WAYS = ("fp32", "stock bf16", "ours")
LOSSES = {"train_loss": "training loss", "eval_loss": "validation loss"}
ENCODER = (
    "model=config:bert", "from_scratch=true",
    "config_overrides={{hidden_size: 192, num_hidden_layers: 2, num_attention_heads: 6, "
    "intermediate_size: 768}}",
    "training.learning_rate=5e-4",
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "mrpc": ("mrpc", *ENCODER, "tokenizer={encoder}/mrpc", "data={data}/mrpc", "batch_size=24"),
    "squad": (
        "squad", *ENCODER, "tokenizer={encoder}/squad", "data={data}/squad", "batch_size=12",
        "max_length=128", "doc_stride=32", "max_query_length=32",
    ),
    "gpt2": (
        "gpt2", "tokenizer=null", "data={data}/shakespeare", "batch_size=8", "block_size=128",
        "validation_split_percentage=10", "vocab_size=2048",
        "training.gradient_accumulation_steps=1", "training.learning_rate=1e-3",
        "config_overrides={{n_layer: 4, n_embd: 192, n_head: 6, resid_pdrop: 0.1, "
        "embd_pdrop: 0.1, attn_pdrop: 0.1}}",
    ),
}  # fmt: skip

Run = dict[str, Any]


def main() -> int:
    """Do the missing runs and print the table; return the exit code."""
    parser = arguments(__doc__, CASES, threads=1)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    cases = options.cases or list(CASES)
    wanted = [
        {"case": case, "way": way, "seed": seed, "steps": options.steps}
        for way in options.way or WAYS
        for case in cases
        for seed in range(1, options.seeds + 1)
    ]
    runs = Lines(options.runs)
    missing = [key for key in wanted if not done(key, runs.read())]
    here = machine(options.prefix, options.threads) if missing else {}
    if missing:
        runs.check(here)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.data.absolute(), Path(folder) / "tokenizers", 1)
        steps = f"training.max_steps={options.steps}"
        run_dirs = {
            case: bench.prepare(Path(folder) / case, (*CASES[case], steps)) for case in cases
        }
        for key in missing:
            run_dir, variables = run_dirs[key["case"]], environment(options.threads)
            run = key | run_module("bench.curves_run", options.prefix, run_dir, key, variables)
            runs.add([run], here)
            said = ", ".join(f"{words} {run[name]:.4f}" for name, words in LOSSES.items())
            print(f"{key['case']}, {key['way']}, seed {key['seed']}: {said}", file=sys.stderr)
    found = summary([run for key in wanted for run in done(key, runs.read())])
    print(table(found))
    write(options.results, {"machine": runs.machine(), "steps": options.steps, "curves": found})
    return 0


def done(key: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the run with these values, if it is done."""
    return [run for run in runs if run.items() >= key.items()][:1]


def summary(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Return all seeds' values by case and way, with mean, deviation and difference to fp32."""
    found: dict[str, dict[str, Any]] = {}
    for case, way in dict.fromkeys((run["case"], run["way"]) for run in runs):
        own = {run["seed"]: run for run in runs if (run["case"], run["way"]) == (case, way)}
        exact = {run["seed"]: run for run in runs if (run["case"], run["way"]) == (case, "fp32")}
        numbers: dict[str, Any] = {
            "seeds": sorted(own),
            "seconds_per_step": statistics.median(r["seconds_per_step"] for r in own.values()),
            "tokens_per_step": next(iter(own.values()))["tokens_per_step"],
            "parameters": next(iter(own.values()))["parameters"],
        }
        for name in LOSSES:
            values = [own[seed][name] for seed in sorted(own)]
            paired = [own[s][name] - exact[s][name] for s in sorted(own) if s in exact]
            numbers[name] = {
                "values": values,
                "mean": statistics.mean(values),
                "deviation": spread(values),
                "beside_fp32": paired,
            }
        found.setdefault(case, {})[way] = numbers
    return found


def spread(values: list[float]) -> float:
    """Return the standard deviation; 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_and_spread(values: list[float], form: str) -> str:
    """Format mean and standard deviation, or nothing without measurements."""
    if not values:
        return ""
    return f"{statistics.mean(values):{form}} ± {spread(values):{form.lstrip('+')}}"


def table(found: dict[str, dict[str, Any]]) -> str:
    """Format mean and deviation over the seeds, and the mean difference to fp32."""
    lines = [
        "| case | way | seeds | training loss | beside fp32 | validation loss | beside fp32 |",
        "|---" * 7 + "|",
    ]
    for case, ways in found.items():
        for way, numbers in ways.items():
            cells = []
            for name in LOSSES:
                loss = numbers[name]
                paired = loss["beside_fp32"] if way != "fp32" else []
                cells += [mean_and_spread(loss["values"], ".4f"), mean_and_spread(paired, "+.4f")]
            lines.append(f"| {case} | {way} | {len(numbers['seeds'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
