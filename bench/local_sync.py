"""Traffic and model quality: an all-reduce in each step against local steps.

    .venv-dev/bin/python -m bench.local_sync --data DIR --encoder DIR --runs FILE [CASE ...]
        [--seeds N] [--way WAY ...] [--rates MBITS ...] [--prefix DIR] [--results FILE]

from the repository's root as root, after `ftcluster setup localhost`. DIR has the folders mrpc and
squad; --encoder is a small BERT with its tokenizer, such as all-MiniLM-L6-v2.

Two ranks of one thread, each of them a worker, fine-tune the encoder in a separate network
namespace. The first seed uses gloo, so the traffic of the loopback interface is the traffic of the
ranks. The other seeds use impi, which needs less of the shared cores. With --rates, each way also
trains some steps over a loopback interface with twice the given rate in Mbit/s, because two hosts
send at the same time. Every training adds a line to FILE and is not repeated when the command is
started again.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.curves import done, spread
from bench.machines import Lines
from bench.quality import TUNED, first_rows
from bench.runs import ROOT, Bench, arguments, environment, machine, write
from ftcluster_common.protocol.launch import BACKEND_VARIABLE, GLOO, IMPI

RANKS = 2
LOCAL = "training.sync=local"
WAYS: dict[str, tuple[str, ...]] = {
    "each step, fp32": ("training.gradient_dtype=fp32",),
    "each step, bf16": ("training.gradient_dtype=bf16",),
    "local, 8 steps, int8": (LOCAL, "training.sync_steps=8", "training.sync_dtype=int8"),
    "local, 16 steps, bf16": (LOCAL, "training.sync_steps=16"),
    "local, 32 steps, int8": (LOCAL, "training.sync_steps=32", "training.sync_dtype=int8"),
    "local, 64 steps, int8": (LOCAL, "training.sync_steps=64", "training.sync_dtype=int8"),
}
# steps of a training that measures speed, with an exchange in each step, or with local steps
FEW, MANY = 32, 96
METRICS = {
    "mrpc": ("accuracy", "f1"),
    "squad": ("exact_match", "f1"),
    "qqp": ("accuracy", "f1"),
}

Run = dict[str, Any]


def main() -> int:
    """Do the missing runs and print the tables; return the exit code."""
    parser = arguments(__doc__, TUNED, threads=1)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", type=int, nargs="*", default=[])
    options = parser.parse_args()
    cases, ways = options.cases or list(TUNED), options.way or list(WAYS)
    trainings = [
        {"case": case, "way": way, "seed": seed, "mbits": None}
        for seed in range(1, options.seeds + 1)
        for case in cases
        for way in ways
    ]
    speeds = [
        {"case": case, "way": way, "seed": 1, "mbits": rate}
        for rate in options.rates
        for case in cases
        for way in ways
    ]
    wanted = [*trainings, *speeds]
    runs = Lines(options.runs)
    missing = [key for key in wanted if not done(key, runs.read())]
    here = machine(options.prefix, 1) if missing else {}
    if missing:
        runs.check(here)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.prefix, options.data.absolute(), options.encoder.absolute(), 1)
        data = {case: first_rows(bench.data / case, Path(folder) / "data") for case in cases}
        for number, key in enumerate(missing):
            shorter = replace(bench, data=data[key["case"]])
            run = key | train(shorter, Path(folder) / str(number), key, WAYS[key["way"]])
            runs.add([run], here)
            print(run, file=sys.stderr, flush=True)
    found = summary([run for key in wanted for run in done(key, runs.read())])
    print(table(found))
    write(options.results, {"machine": runs.machine(), "ranks": RANKS, "trainings": found})
    return 0


def train(bench: Bench, run_dir: Path, key: Run, way: tuple[str, ...]) -> Run:
    """Run one training with the programs that `ftcluster train` starts on hosts."""
    words = [*TUNED[key["case"]], *way, f"training.seed={key['seed']}"]
    if key["mbits"]:
        steps = MANY if LOCAL in way else FEW
        words += [f"training.max_steps={steps}", "training.eval_strategy=no"]
    bench.prepare(run_dir, tuple(words))
    python = str(bench.prefix / "current/bin/python")
    variables = {
        **environment(1, tcmalloc=True),
        "PATH": f"{bench.prefix}/current/bin:{os.environ['PATH']}",
        "I_MPI_PIN": "0",
        BACKEND_VARIABLE: IMPI if key["seed"] > 1 else GLOO,
    }
    limit = ""
    if key["mbits"]:
        rate = f"{RANKS * key['mbits']}mbit"
        limit = f"tc qdisc add dev lo root tbf rate {rate} burst 1mb latency 500ms; "
    script = (
        f"ip link set lo up; {limit}"
        f"mpirun -n {RANKS} {python} -m ftcluster_train.engine.rank {run_dir} && cat /proc/net/dev"
    )
    for command in (
        [python, "-m", "ftcluster_train.engine.prepare", str(run_dir)],
        ["unshare", "--net", "bash", "-c", script],
    ):
        run = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=ROOT)
        if run.returncode != 0:
            raise SystemExit(run.stdout + run.stderr)
    (loopback,) = (line for line in run.stdout.splitlines() if line.strip().startswith("lo:"))
    events = [json.loads(line) for line in (run_dir / "events.jsonl").open(encoding="utf-8")]
    (start,) = (event for event in events if event["event"] == "start")
    (result,) = (event for event in events if event["event"] == "result")
    return {
        "metrics": result["metrics"],
        "samples_per_second": result["samples_per_second"],
        "steps": start["steps"],
        "samples": round(start["epochs"] * start["train_samples"]),
        "sent_bytes": int(loopback.split()[9]) / RANKS,  # bytes per rank
        "load": os.getloadavg()[0],
    }


def summary(runs: list[Run]) -> dict[str, dict[str, Run]]:
    """Return metrics, bytes and times of all seeds by case and way."""
    found: dict[str, dict[str, Run]] = {}
    for case, way in dict.fromkeys((run["case"], run["way"]) for run in runs):
        own = [run for run in runs if (run["case"], run["way"]) == (case, way)]
        whole = [run for run in own if run["mbits"] is None]
        if not whole:  # only the speed was measured
            continue
        numbers: Run = {
            "steps": whole[0]["steps"],
            "samples": whole[0]["samples"],
            "sent_bytes": next(run["sent_bytes"] for run in whole if run["seed"] == 1),
            "samples_per_second": {
                str(run["mbits"]): run["samples_per_second"] for run in own if run["mbits"]
            },
        }
        for name in METRICS[case]:
            values = [run["metrics"][name] for run in whole]
            numbers[name] = {
                "values": values, "mean": statistics.mean(values), "deviation": spread(values)
            }  # fmt: skip
        found.setdefault(case, {})[way] = numbers
    return found


def table(found: dict[str, dict[str, Run]]) -> str:
    """Format the metrics, a rank's sent bytes, and the minutes of a training at each rate."""
    lines = []
    for case, ways in found.items():
        rates = list(
            dict.fromkeys(rate for way in ways.values() for rate in way["samples_per_second"])
        )
        heads = [*METRICS[case], "MB sent", "of fp32", *(f"min at {rate} Mbit/s" for rate in rates)]
        lines += ["", f"| {case} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        first = next(iter(ways.values()))
        for way, numbers in ways.items():
            scale = 100 if case == "mrpc" else 1
            cells = [
                f"{scale * numbers[name]['mean']:.1f} ± {scale * numbers[name]['deviation']:.1f}"
                for name in METRICS[case]
            ]
            sent = numbers["sent_bytes"]
            cells += [f"{sent / 1e6:,.0f}", f"1/{first['sent_bytes'] / sent:.3g}"]
            for rate in rates:
                speed = numbers["samples_per_second"].get(rate)
                cells.append(f"{numbers['samples'] / speed / 60:.1f}" if speed else "")
            lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
