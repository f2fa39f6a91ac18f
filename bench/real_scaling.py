"""Scaling of BERT-base training steps on hosts that compute, and a picture of one step.

    sudo env FTCLUSTER_TESTBED_NAME=k .venv-dev/bin/python -m bench.real_scaling VERB --results FILE

after `testbed up 4` and `ftcluster setup` of these hosts; XDG_STATE_HOME is the same as for the
setup.

    measure   steps of `bench.real_steps` on 2 and 4 hosts, every other one without an exchange;
              each host has half a core and a cable of 10 Gbit/s
    trace     one step on 2 hosts of a core with a cable of 1 Gbit/s, which shows what runs beside
              what
    picture   writes docs/overlap.svg from the trace, and prints the table

The hosts share this machine's cores, so that 4 of half a core use 2. What a host computes, sends
and waits for is real; its network's work takes its own CPU time.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from bench.machines import cpu, resumed
from bench.runs import ROOT, write
from ftcluster.report.charts import COMMUNICATION, COMPUTE, INPUT, THEME
from tests.programs import FTCLUSTER
from tests.testbed import Testbed

HOSTS, TURNS, STEPS = (2, 4), 2, 14
SAMPLES, TOKENS = 32, 128
SHARE, RATE = 50, "10gbit"  # percent of a core, and speed of a cable
TRACE_SHARE, TRACE_RATE = 100, "1gbit"
PICTURE = ROOT / "docs/overlap.svg"
SHADES = {"forward": COMPUTE, "backward": COMPUTE, "optimizer": INPUT, "exchange": COMMUNICATION}

Line = dict[str, Any]


def steps_on(bed: Testbed, hosts: int, share: int, rate: str) -> list[Line]:
    """Run steps on the first hosts; limit the hosts once the ranks have done the first step."""
    for number in range(hosts):
        bed.shape(f"node{number}", "off")
        bed.cpu(f"node{number}", None)
    work = json.dumps({"backend": "impi", "steps": STEPS + 2, "samples": SAMPLES, "tokens": TOKENS})
    found: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "bench/real_steps.py", folder)
        words = ("run", "--nodes", str(hosts), "--ranks-per-host", "1", "--")
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        argv = [str(FTCLUSTER), *words, "real_steps.py", work]
        command = subprocess.Popen(
            bed.run_argv(argv), env=environment | bed.connections, cwd=folder, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert command.stdout
        for text in command.stdout:
            if not text.startswith('{"step"'):
                continue
            if not found:
                for number in range(hosts):
                    bed.cpu(f"node{number}", share)
                    bed.shape(f"node{number}", rate)
            found.append(json.loads(text))
            print(f"{hosts} hosts: {slowest(found[-1]):.2f} s", file=sys.stderr)
        if command.wait() != 0:
            raise SystemExit(f"{argv} failed; see ftcluster logs")
    return found[2:]  # the first step is unlimited, and the second began before the limits


def slowest(line: Line) -> float:
    """Return the seconds of the slowest rank in a step."""
    return max(float(seconds) for seconds, _ in line["ranks"])


def table(turns: Sequence[Line]) -> list[str]:
    """Format a row for each number of hosts: medians of all pairs of steps."""
    rows = [
        "| hosts | a step alone, s | with exchange, s | efficiency | of the turns | blocked |",
        "|---|---|---|---|---|---|",
    ]
    for hosts in sorted({one["hosts"] for one in turns}):
        of_turns = [pairs(one["steps"]) for one in turns if one["hosts"] == hosts]
        found = [pair for one in of_turns for pair in one]
        alone, together = (statistics.median(map(slowest, one)) for one in zip(*found, strict=True))
        waited = statistics.median(max(row[1] for row in pair[1]["ranks"]) for pair in found)
        each = ", ".join(f"{efficiency(one):.1%}" for one in of_turns)
        rows.append(
            f"| {hosts} | {alone:.2f} | {together:.2f} | {efficiency(found):.1%} | {each} | "
            f"{waited / together:.1%} |"
        )
    return rows


def pairs(steps: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Yield each step without an exchange, and the next step."""
    return list(zip(steps[::2], steps[1::2], strict=True))


def efficiency(found: Sequence[tuple[Line, Line]]) -> float:
    """Return the median over pairs of the time alone divided by the time with the exchange."""
    return statistics.median(slowest(alone) / slowest(other) for alone, other in found)


def picture(spans: Sequence[tuple[str, str, float, float]]) -> str:
    """Draw the parts of a step as bars: computation above communication."""
    rows = [
        {"row": "network" if row == "exchange" else "cores", "kind": row, "part": part,
         "from": first, "to": last}
        for row, part, first, last in spans
    ]  # fmt: skip
    kinds = list(SHADES)
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(stroke="white", strokeWidth=0.7)
        .encode(
            x=alt.X("from:Q", title="seconds of a step", axis=alt.Axis(tickCount=8)),
            x2="to:Q",
            y=alt.Y("row:N", title=None, sort=["cores", "network"]),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=kinds, range=[SHADES[one] for one in kinds]),
                title=None,
            ),
            opacity=alt.condition(alt.datum.kind == "forward", alt.value(0.55), alt.value(1)),
        )
        .properties(width=640, height=90)
    )  # fmt: skip
    spec = chart.to_dict()
    spec["config"] = {**THEME, "background": "white"}
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def main() -> int:
    """Measure, or write the picture; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("measure", "trace", "picture"))
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    results = resumed(options.results, cpu(), "turns")
    if options.verb == "picture":
        PICTURE.write_text(picture(results["trace"]) + "\n", encoding="utf-8")
        print("\n".join(table(results["turns"])))
    elif options.verb == "trace":
        results["trace"] = steps_on(Testbed(), 2, TRACE_SHARE, TRACE_RATE)[-1]["spans"]
        write(options.results, results)
    else:
        for turn in range(TURNS):
            for hosts in HOSTS[:: 1 if turn % 2 else -1]:
                steps = steps_on(Testbed(), hosts, SHARE, RATE)
                results["turns"].append(
                    {"hosts": hosts, "steps": steps, "load": os.getloadavg()[0]}
                )
                write(options.results, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
