"""Scaling of ours and the stock recipe on hosts of half a core with a shaped network.

    sudo env FTCLUSTER_TESTBED_NAME=k .venv-dev/bin/python -m bench.scaling_proof VERB ...
        --results FILE

after `testbed up 4` and `ftcluster setup` of these hosts; XDG_STATE_HOME is the same as for the
setup.

    rate    finds the rate at which DistributedDataParallel with gloo has 87 % at 4 hosts
    replay  measures modes at that rate: --hosts N --backend NAME --modes NAMES
    table   prints what was measured, and fits the model of `ftcluster bench scaling` to it

All hosts share a few cores, so the forward and backward passes are pauses of measured lengths
(`--stock-seconds`, `--our-seconds`: of a step without AdamW, on half a core), and everything else
is real: see bench.scaling_replay. Each measurement adds a line of JSON to the results. While ranks
load torch the hosts are not limited to half a core.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.machines import Lines, cpu
from bench.runs import ROOT
from ftcluster.benchmark.scaling_model import Mode, Step, fit, prediction_errors
from tests.testbed import Testbed

FTCLUSTER = ROOT / ".venv/bin/ftcluster"
PARAMETERS = 66_955_010  # DistilBERT-base with two classes
ROWS = 900  # rows of the embedding in a batch of 32 pairs of MRPC
PERCENT = 50  # percent of a core
EVERY = 4  # steps between two exchanges of local steps; the default of 32 would take long
STEPS = 5  # steps of each mode, of which the first is not counted
RATES = (0, 2000, 1400, 1000, 700)  # rates to try in Mbit/s; 0: no limit
STEPS_A_RATE = 3  # steps at each rate, of which the first is not counted
WANTED = 0.87  # efficiency of the stock recipe at 4 hosts
DDP = Mode("gloo", "fp32", "ddp")
DDP_BUCKETS = 12  # buckets of 25 MiB, plus a first bucket of 1 MiB
PREDICTED = (8, 16, 32, 64, 128, 256)

Line = dict[str, Any]


def main() -> int:
    """Measure or print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("rate", "replay", "table"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--backend", default="impi")
    parser.add_argument("--modes", default="bf16-whole")
    parser.add_argument("--stock-seconds", type=float, default=5.0)
    parser.add_argument("--our-seconds", type=float, default=3.4)
    options = parser.parse_args()
    results = Lines(options.results, "--results")
    if options.verb != "table":
        results.check(cpu())
    if options.verb == "rate":
        alone = replay(options, 1, "gloo", ["ddp"], STEPS, 0)
        results.add(alone, cpu())
        for one in find_rate(options, seconds_of(alone)):
            results.add(one, cpu())
    elif options.verb == "replay":
        rate = 0.0 if options.hosts == 1 else chosen_rate(results.read())
        modes = options.modes.split(",")
        lines = replay(options, options.hosts, options.backend, modes, STEPS, rate)
        results.add(lines, cpu())
    else:
        print("\n".join(table(results.read())))
    return 0


def find_rate(options: argparse.Namespace, alone: float) -> Iterator[list[Line]]:
    """Run steps of the stock recipe on 4 hosts at each of RATES; find the rate for WANTED."""
    bed, steps = Testbed(), 0

    def on_step(_: Line) -> None:
        nonlocal steps
        steps += 1
        if steps % STEPS_A_RATE == 0 and steps // STEPS_A_RATE < len(RATES):
            shape(bed, 4, RATES[steps // STEPS_A_RATE])

    lines = replay(options, 4, "gloo", ["ddp"], STEPS_A_RATE * len(RATES), RATES[0], on_step)
    (all_steps,) = (line["steps"] for line in lines)
    found = []
    for number, rate in enumerate(RATES):
        of_rate = all_steps[number * STEPS_A_RATE : (number + 1) * STEPS_A_RATE]
        found.append({**lines[0], "rate": rate, "steps": of_rate})
    yield found
    points = [(one["rate"], alone / seconds_of([one])) for one in found if one["rate"]]
    yield [{"chosen_rate": round(interpolate(points, WANTED)), "points": points}]


def interpolate(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the rate for an efficiency; between two points, efficiency changes with 1 / rate.

    >>> round(interpolate([(1000, 0.9), (500, 0.8)], 0.85))
    667
    """
    pairs = list(pairwise(points))
    (fast, high), (slow, low) = next(
        (pair for pair in pairs if pair[0][1] >= wanted >= pair[1][1]), pairs[0]
    )
    part = (high - wanted) / (high - low)
    return 1 / (1 / fast + part * (1 / slow - 1 / fast))


def replay(
    options: argparse.Namespace,
    hosts: int,
    backend: str,
    modes: Sequence[str],
    steps: int,
    rate: float,
    on_step: Callable[[Line], None] = lambda _: None,
) -> list[Line]:
    """Run some modes on the testbed's first hosts; yield a line for each mode.

    Args:
        rate: Mbit/s; 0: not shaped.
    """
    bed = Testbed()
    shape(bed, hosts, 0)
    limit(bed, hosts, None)
    stock = modes == ["ddp"]
    seconds = options.stock_seconds if stock else options.our_seconds
    work = {
        "backend": backend, "modes": modes, "steps": steps, "forward": seconds / 3,
        "backward": 2 * seconds / 3, "rows": ROWS, "every": EVERY,
    }  # fmt: skip
    found: dict[str, list[Line]] = {}
    latencies: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "bench/scaling_replay.py", folder)
        words = ("run", "--nodes", str(hosts), "--ranks-per-host", "1", "--")
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        argv = [str(FTCLUSTER), *words, "scaling_replay.py", json.dumps(work)]
        command = subprocess.Popen(
            bed.run_argv(argv), env=environment | bed.connections, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert command.stdout
        for text in command.stdout:
            if not text.startswith('{"mode"'):
                continue
            line = json.loads(text)
            if not found:
                limit(bed, hosts, PERCENT)
                shape(bed, hosts, rate)
            found.setdefault(line["mode"], []).append(line["ranks"])
            latencies.append(line["latency"])
            print(f"{hosts} hosts, {line['mode']}: {slowest(line['ranks']):.2f} s", file=sys.stderr)
            on_step(line)
        if command.wait() != 0:
            raise SystemExit(f"{argv} failed; see ftcluster logs")
    return [
        {"hosts": hosts, "backend": backend, "mode": mode, "rate": rate, "seconds": seconds,
         "latency": statistics.median(latencies), "steps": ranks}
        for mode, ranks in found.items()
    ]  # fmt: skip


def shape(bed: Testbed, hosts: int, rate: float) -> None:
    """Limit the cables of the first hosts to a rate in Mbit/s; 0: no limit."""
    for number in range(hosts):
        bed.shape(f"node{number}", f"{rate:.0f}mbit" if rate else "off")


def limit(bed: Testbed, hosts: int, percent: float | None) -> None:
    """Limit the CPU time of the first hosts."""
    for number in range(hosts):
        bed.cpu(f"node{number}", percent)


def slowest(ranks: Sequence[Line]) -> float:
    """Return the seconds of the slowest rank in a step."""
    return float(max(rank["seconds"] for rank in ranks))


def seconds_of(lines: Sequence[Line]) -> float:
    """Return the median step of a measurement, or the mean if only some steps exchange data."""
    mean = statistics.mean if lines[0]["mode"].endswith("local") else statistics.median
    return mean(slowest(ranks) for line in lines for ranks in counted(line))


def counted(line: Line) -> list[list[Line]]:
    """Return the steps without the first, or without the steps up to the first exchange."""
    steps: list[list[Line]] = line["steps"]
    return steps[EVERY:] if line["mode"].endswith("local") else steps[1:]


def chosen_rate(lines: Sequence[Line]) -> float:
    """Return the rate that the last search chose."""
    return float([line["chosen_rate"] for line in lines if "chosen_rate" in line][-1])


def step_of(line: Line) -> Step:
    """Convert a measurement to a step of the model."""
    if line["mode"] == "ddp":
        latency = DDP_BUCKETS * line["latency"]
        return Step(DDP, line["hosts"], seconds_of([line]), 8.0 * PARAMETERS, latency=latency)
    dtype, optimizer = line["mode"].split("-")
    sent = statistics.mean(rank["sent"] for ranks in counted(line) for rank in ranks)
    exchanged = sent * line["hosts"] / max(line["hosts"] - 1, 1)
    mode = Mode(line["backend"], dtype, optimizer, EVERY if optimizer == "local" else 1)
    calls = statistics.mean(ranks[0]["collectives"] for ranks in counted(line))
    latency = calls * line["latency"]
    return Step(mode, line["hosts"], seconds_of([line]), exchanged, latency=latency)


def merged(lines: Sequence[Line], rate: float) -> list[Line]:
    """Return the measurements at a rate, with repeated ones merged."""
    found: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if "steps" in line and (line["hosts"] == 1 or line["rate"] == rate):
            key = line["hosts"], line["backend"], line["mode"]
            before = found.get(key)
            steps = [*before["steps"], *counted(line)] if before else line["steps"]
            found[key] = {**line, "steps": steps}
    return list(found.values())


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Return the table of measurements at the chosen rate, and of the model."""
    rate = chosen_rate(lines)
    measured = [(step_of(line), line) for line in merged(lines, rate)]
    yield f"{rate:.0f} Mbit/s"
    yield "| hosts | mode | step, s | efficiency | blocked | MB sent |"
    yield "|---|---|---|---|---|---|"
    for stock in (True, False):
        own = [(step, line) for step, line in measured if (step.mode == DDP) == stock]
        alone = [step for step, _ in own if step.hosts == 1]
        if not alone:
            continue
        base = statistics.mean(step.seconds for step in alone)
        for step, line in sorted(own, key=lambda pair: (pair[0].hosts, pair[0].mode)):
            ranks = [rank for of_step in counted(line) for rank in of_step]
            blocked = statistics.mean(rank["waited"] for rank in ranks) / step.seconds
            sent = step.exchanged * (step.hosts - 1) / step.hosts / 1e6
            yield (
                f"| {step.hosts} | {step.mode.name} | {step.seconds:.2f} "
                f"| {base / step.seconds:.1%} | {'-' if stock else f'{blocked:.1%}'} | {sent:.0f} |"
            )
        steps = [step for step, _ in own]
        for name, fitted in (("all points", steps), *_without_most(steps)):
            if model := fit(fitted):
                yield ""
                yield f"model of {name}: {model}"
                for step in steps:
                    if step.hosts > 1 and step.mode in model.exchanged and step not in fitted:
                        error = model.seconds(step.mode, step.hosts) / step.seconds - 1
                        yield f"{step.hosts} hosts, {step.mode.name}: {error:+.1%}"
                for hosts in PREDICTED:
                    found = {m.name: model.efficiency(m, hosts) for m in model.exchanged}
                    yield f"{hosts}: " + ", ".join(f"{n} {e:.0%}" for n, e in found.items())
        errors = [abs(error) for _, error in prediction_errors(steps)]
        if errors:
            mean, most = statistics.mean(errors), max(errors)
            yield f"error when predicted from the others: mean {mean:.1%}, most {most:.1%}"


def _without_most(steps: Sequence[Step]) -> list[tuple[str, list[Step]]]:
    """Return the measurements without those on the most hosts, if enough remain for a model."""
    most = max(step.hosts for step in steps)
    fewer = [step for step in steps if step.hosts < most]
    return [(f"fewer than {most} hosts", fewer)] if most > 2 else []


if __name__ == "__main__":
    sys.exit(main())
