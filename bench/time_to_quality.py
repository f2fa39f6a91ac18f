"""The time to a recipe's final metric: its own schedule, and a shorter one of equal quality.

    .venv-dev/bin/python -m bench.time_to_quality --data DIR --encoder DIR --runs FILE [CASE ...]
        [--way WAY ...] [--seed N ...] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. DIR has the folders mrpc, squad
and qqp; --encoder is a small BERT with its tokenizer, such as all-MiniLM-L6-v2. The engine is this
checkout's.

Each training is a process of one rank, trainings alternate, and the metric is measured at the end
of the schedule. A training adds a line to FILE and is not repeated when the command is started
again. CPU time and seconds are those of the training loop, without evaluations. Other programs
change the seconds more than the CPU time. The shorter schedules were chosen with other seeds than
the seeds measured here.
"""

import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.curves import done, mean_and_spread, spread
from bench.local_sync import METRICS
from bench.machines import Lines
from bench.quality import TUNED, first_rows
from bench.runs import Bench, arguments, environment, machine, run_module, write

STOCK, SHORT = "stock", "short"
# a new head with 5 times the usual weights, so that gradients reach the encoder from the first
# steps
HEAD = "config_overrides.initializer_range=0.1"
WITHOUT_DROPOUT = (
    "config_overrides.hidden_dropout_prob=0",
    "config_overrides.attention_probs_dropout_prob=0",
)
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "mrpc": {
        STOCK: (),
        SHORT: (HEAD, *WITHOUT_DROPOUT, "batch_size=16", "training.num_train_epochs=1.5"),
    },
    "squad": {
        STOCK: (),
        SHORT: (HEAD, *WITHOUT_DROPOUT, "batch_size=8", "training.num_train_epochs=1.2"),
    },
    # without dropout, the model predicts "duplicate" less often and does not reach stock's F1
    "qqp": {
        STOCK: (),
        SHORT: (HEAD, "batch_size=16", "training.num_train_epochs=1.5"),
    },
}
AT_THE_END = ("training.eval_strategy=steps", "training.eval_steps=1000000")
COSTS = ("cpu_seconds", "seconds", "tokens")

Run = dict[str, Any]


def main() -> int:
    """Do the missing runs and print the tables; return the exit code."""
    parser = arguments(__doc__, WAYS, threads=1)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--way", action="append", choices=(STOCK, SHORT))
    parser.add_argument("--seed", action="append", type=int)
    options = parser.parse_args()
    wanted = [
        {
            "case": case, "way": way, "seed": seed, "threads": options.threads,
            "recipe": " ".join((*TUNED[case], *WAYS[case][way])),
        }
        for seed in options.seed or range(1, 6)
        for case in options.cases or WAYS
        for way in options.way or (STOCK, SHORT)
    ]  # fmt: skip
    runs = Lines(options.runs)
    missing = [key for key in wanted if not done(key, runs.read())]
    here = machine(options.prefix, options.threads) if missing else {}
    if missing:
        runs.check(here)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.prefix, options.data.absolute(), options.encoder.absolute(), 1)
        cases = {key["case"] for key in wanted}
        data = {case: first_rows(bench.data / case, Path(folder) / "data") for case in cases}
        for number, key in enumerate(missing):
            shorter = replace(bench, data=data[key["case"]])
            run = key | train(shorter, Path(folder) / str(number), key)
            runs.add([run], here)
            print(run, file=sys.stderr, flush=True)
    found = summary([run for key in wanted for run in done(key, runs.read())])
    print(table(found))
    write(options.results, {"machine": runs.machine(), "trainings": found})
    return 0


def train(bench: Bench, run_dir: Path, key: Run) -> Run:
    """Run one training; see bench.time_to_quality_run."""
    recipe = (*TUNED[key["case"]], *WAYS[key["case"]][key["way"]])
    seed = f"training.seed={key['seed']}"
    bench.prepare(run_dir, (*recipe, *AT_THE_END, seed, "training.logging_steps=1"))
    variables = environment(key["threads"], tcmalloc=True)
    found = run_module("bench.time_to_quality_run", bench.prefix, run_dir, {}, variables)
    return found | {"load": os.getloadavg()[0]}


def summary(runs: list[Run]) -> dict[str, dict[str, Run]]:
    """Return metrics and costs of all seeds by case and way, with those of the stock recipe."""
    found: dict[str, dict[str, Run]] = {}
    for case, way in dict.fromkeys((run["case"], run["way"]) for run in runs):
        own = {run["seed"]: run for run in runs if (run["case"], run["way"]) == (case, way)}
        stock = {run["seed"]: run for run in runs if (run["case"], run["way"]) == (case, STOCK)}
        both = [(run, stock[seed]) for seed, run in own.items() if seed in stock]
        first = next(iter(own.values()))
        numbers: Run = {name: first[name] for name in ("recipe", "steps")} | {"seeds": list(own)}
        for name in METRICS[case]:
            values = [run["metrics"][name] for run in own.values()]
            numbers[name] = {
                "values": values,
                "mean": statistics.mean(values),
                "deviation": spread(values),
                "beside_stock": [a["metrics"][name] - b["metrics"][name] for a, b in both],
            }
        for name in COSTS:
            numbers[name] = {
                "values": [run[name] for run in own.values()],
                "stock_over_this": [b[name] / a[name] for a, b in both],
            }
        found.setdefault(case, {})[way] = numbers
    return found


def table(found: dict[str, dict[str, Run]]) -> str:
    """Format each way's metrics and costs, and how many times lower the costs are than stock's."""
    lines = []
    for case, ways in found.items():
        scale = 1 if case == "squad" else 100
        heads = [*METRICS[case], f"{METRICS[case][-1]} beside stock", "steps", "CPU s", "s"]
        heads += ["stock's CPU time over this", "stock's time over this"]
        lines += ["", f"| {case} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for way, numbers in ways.items():
            cells = [
                mean_and_spread([scale * value for value in numbers[name]["values"]], ".1f")
                for name in METRICS[case]
            ]
            paired = numbers[METRICS[case][-1]]["beside_stock"]
            cells.append(mean_and_spread([scale * value for value in paired], "+.1f"))
            cells.append(str(numbers["steps"]))
            cells += [mean_and_spread(numbers[name]["values"], ".0f") for name in COSTS[:2]]
            cells += [
                mean_and_spread(numbers[name]["stock_over_this"], ".2f") for name in COSTS[:2]
            ]
            lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
