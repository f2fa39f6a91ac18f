"""Scaling of BERT-base training steps on hosts that compute, and a picture of one step.

    sudo env FTCLUSTER_TESTBED_NAME=k .venv-dev/bin/python -m bench.real_scaling VERB
        [--stack .venv-engine] [--hosts 2 4 8] [--rates 1gbit 10gbit 25gbit] [--pairs N]
        [--samples N] [--layers N] [--precision bf16] --results FILE

after `testbed up 8`. Ranks run in the networks and cgroups of the hosts with this machine's files,
so the hosts need no setup. --stack has bin/python with torch and bin/mpirun.

    network   bytes per second that a plain socket carries between two hosts at each rate, because a
              fast cable may be limited by this machine
    measure   steps of `bench.real_steps`, every other one without an exchange. Each host has half a
              core, or an equal share of this machine's cores if these do not suffice
    trace     one step on 2 hosts of a core with a cable of 1 Gbit/s, which shows what runs beside
              what
    picture   writes docs/overlap.svg from the trace, and prints the table

The hosts share this machine's cores. What a host computes, sends and waits for is real; its
network's work takes its own CPU time. Steps are paired: one without an exchange, and the next one.
The first pair after each change of the rate does not count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vl_convert

from bench.machines import cpu, precision, resumed
from bench.on_hosts import address, in_network, launch
from bench.runs import ROOT, write
from ftcluster.report.charts import THEME, step_line
from tests.testbed import Testbed

HOSTS, RATES, PAIRS = (2, 4, 8), ("1gbit", "10gbit", "25gbit"), 4
SAMPLES, TOKENS, LAYERS = 32, 128, 12
SHARE = 50  # percent of a core that a host has at most
TRACE_SHARE, TRACE_RATE = 100, "1gbit"
PICTURE = ROOT / "docs/overlap.svg"
PROGRAM = ROOT / "bench/real_steps.py"
PORT, SECONDS = 29570, 2.0  # port and duration of a measurement of the network
RECEIVE = """import socket, sys, time
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    received, buffer = 0, bytearray(1 << 20)
    with server.accept()[0] as stream:
        began = time.perf_counter()
        while count := stream.recv_into(buffer):
            received += count
        print(received / (time.perf_counter() - began))
"""
SEND = """import socket, sys, time
data, end = bytes(1 << 20), time.perf_counter() + float(sys.argv[3])
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as stream:
    while time.perf_counter() < end:
        stream.sendall(data)
"""

Line = dict[str, Any]


def share_of(hosts: int) -> float:
    """Return the percentage of a core that each of some hosts has.

    >>> share_of(1)
    50
    """
    return min(SHARE, 100 * len(os.sched_getaffinity(0)) / hosts)


def limit(bed: Testbed, hosts: int, share: float | None, rate: str) -> None:
    """Limit the CPU time and the cables of the first hosts."""
    for number in range(hosts):
        bed.cpu(f"node{number}", share)
        bed.shape(f"node{number}", rate)


def bytes_per_second(bed: Testbed, rate: str) -> float:
    """Return the bytes per second that a plain socket carries from node1 to node0."""
    limit(bed, 2, None, rate)
    words = [address(0), str(PORT)]
    receiver = subprocess.Popen(
        [*in_network(0), sys.executable, "-c", RECEIVE, *words], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout
    receiver.stdout.readline()
    subprocess.run([*in_network(1), sys.executable, "-c", SEND, *words, str(SECONDS)], check=True)
    found = float(receiver.stdout.readline())
    receiver.wait()
    limit(bed, 2, None, "off")
    return found


def turns_on(
    bed: Testbed, options: argparse.Namespace, hosts: int, share: float, rates: Sequence[str]
) -> Iterator[Line]:
    """Run steps on the first hosts at each rate; yield the steps at a rate that count.

    The hosts are limited once the ranks have done the first step.
    """
    limit(bed, hosts, None, "off")
    each = 2 * (1 + options.pairs)  # steps at each rate
    work = json.dumps(
        {"backend": "impi", "steps": 2 + each * len(rates), "samples": options.samples,
         "tokens": TOKENS, "precision": options.precision, "layers": options.layers}
    )  # fmt: skip
    lines = launch(options.stack.absolute(), ROOT, hosts, PROGRAM, [work])
    steps = (json.loads(line) for line in lines if line.startswith('{"step"'))
    next(steps)
    limit(bed, hosts, share, rates[0])
    next(steps)
    for number, rate in enumerate(rates):
        found = []
        for step in range(each):
            found.append(next(steps))
            print(f"{hosts} hosts, {rate}: {slowest(found[-1]):.2f} s", file=sys.stderr)
            if step == each - 1 and number + 1 < len(rates):
                limit(bed, hosts, share, rates[number + 1])
        yield {
            "hosts": hosts, "share": share, "rate": rate, "samples": options.samples,
            "precision": options.precision, "layers": options.layers,
            "steps": found[2:], "load": os.getloadavg()[0],
        }  # fmt: skip
    for _ in steps:  # until the ranks have ended
        pass


def slowest(line: Line) -> float:
    """Return the seconds of the slowest rank in a step."""
    return max(float(seconds) for seconds, _ in line["ranks"])


def table(turns: Sequence[Line], network: Sequence[Line]) -> list[str]:
    """Format a row for each number of hosts and rate: medians of all pairs of steps.

    Args:
        network: measured bytes per second of a cable at each rate.
    """
    carried = {one["rate"]: f"{8 * one['bytes_per_second'] / 1e9:.1f}" for one in network}
    rows = [
        "| hosts | of a core each | layers | samples | network | a socket carries, Gbit/s "
        "| a step alone, s | with exchange, s | efficiency | pairs | blocked |",
        "|---" * 11 + "|",
    ]
    for key in dict.fromkeys(map(_key, turns)):
        hosts, share, rate, samples, _precision, layers = key
        found = [pair for one in turns if _key(one) == key for pair in pairs(one["steps"])]
        alone, together = (statistics.median(map(slowest, one)) for one in zip(*found, strict=True))
        waited = statistics.median(max(row[1] for row in pair[1]["ranks"]) for pair in found)
        each = [slowest(alone) / slowest(other) for alone, other in found]
        rows.append(
            f"| {hosts} | {share:.0f} % | {layers} | {samples} | {rate.replace('gbit', ' Gbit/s')} "
            f"| {carried.get(rate, '')} | {alone:.2f} | {together:.2f} | {efficiency(found):.0%} "
            f"| {len(each)}: {min(each):.0%} to {max(each):.0%} | {waited / together:.0%} |"
        )
    return rows


def _key(turn: Line) -> tuple[int, float, str, int, str, int]:
    """Return the conditions of a turn; in older results they were always the same."""
    return (
        turn["hosts"], turn.get("share", SHARE), turn.get("rate", "10gbit"),
        turn.get("samples", SAMPLES), turn.get("precision", "bf16"), turn.get("layers", LAYERS),
    )  # fmt: skip


def pairs(steps: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Yield each step without an exchange, and the next step."""
    return list(zip(steps[::2], steps[1::2], strict=True))


def efficiency(found: Sequence[tuple[Line, Line]]) -> float:
    """Return the median over pairs of the time alone divided by the time with the exchange."""
    return statistics.median(slowest(alone) / slowest(other) for alone, other in found)


def picture(spans: Sequence[tuple[str, str, float, float]]) -> str:
    """Draw the parts of a step as the report of a run does, but wider."""
    spec = step_line(spans, 640).to_dict()
    spec["config"] = {**THEME, "background": "white"}
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def main() -> int:
    """Measure, or write the picture; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("network", "measure", "trace", "picture"))
    parser.add_argument("--stack", type=Path, default=ROOT / ".venv-engine")
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=precision())
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "picture":
        results = json.loads(options.results.read_text(encoding="utf-8"))
        PICTURE.write_text(picture(results["trace"]) + "\n", encoding="utf-8")
        print("\n".join(table(results["turns"], results.get("network", []))))
        return 0
    results, bed = resumed(options.results, cpu(), "turns"), Testbed()
    if options.verb == "network":
        results["network"] = [
            {"rate": rate, "bytes_per_second": bytes_per_second(bed, rate)}
            for rate in ("off", *options.rates)
        ]
        print(json.dumps(results["network"]))
        write(options.results, results)
    elif options.verb == "trace":
        options.pairs = 2
        [turn] = turns_on(bed, options, 2, TRACE_SHARE, [TRACE_RATE])
        results["trace"] = turn["steps"][-1]["spans"]
        write(options.results, results)
    else:
        for hosts in options.hosts:
            for turn in turns_on(bed, options, hosts, share_of(hosts), options.rates):
                results["turns"].append(turn)
                write(options.results, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
