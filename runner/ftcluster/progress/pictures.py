"""The pictures that a terminal shows of a setup (a line for each host) and of a training run."""

import math
import time
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ftcluster.progress import format
from ftcluster.progress.state import RunProgress, SetupProgress

STYLES = {"running": "cyan", "done": "green", "failed": "bold red", "unreachable": "bold red"}
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40


def setup_picture(progress: SetupProgress) -> RenderableType:
    """Return a table with a line for each host: stage, task, counts and time."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("host", "stage", "task"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for column in ("ok", "changed", "failed", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, host in progress.hosts.items():
        state = format.host_state(host, progress.finished)
        running = state == "running"
        until = time.monotonic() if running else host.ended
        shown = {"running": host.activity or host.task, "done": "done"}
        table.add_row(
            Text(name, style="bold"),
            Text(host.stage, style=STYLES[state]),
            Text(shown.get(state, state), style="" if running else STYLES[state]),
            str(host.ok + host.changed),
            Text(str(host.changed), style="yellow" if host.changed else "dim"),
            Text("1" if host.failed else "0", style="bold red" if host.failed else "dim"),
            format.duration(until - host.started),
        )
    return table


def run_picture(progress: RunProgress) -> RenderableType:
    """Return the run's shape, progress bar, latest step, loss curve and evaluations."""
    title = Text.assemble((f"run {progress.run}", "bold"), "  ")
    if not progress.start:
        doing = progress.doing if progress.state == "running" else progress.state
        return Group(title.append(doing, style="cyan"))
    parts: list[RenderableType] = [title.append(format.shape(progress), style="dim")]
    steps = progress.start["steps"]
    done = progress.step.get("step", 0)
    bar = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [
        ProgressBar(total=steps, completed=done, width=SPARK_WIDTH),
        Text(f"step {done}/{steps}"),
    ]
    if progress.step:  # not every step is logged; the speed is unknown before the first logged step
        cells += [
            Text(f"epoch {progress.step['epoch']:.2f}/{progress.start['epochs']:.3g}"),
            Text(f"{progress.step['samples_per_second']:.1f} samples/s", style="green"),
        ]
        if progress.state == "running" and progress.steps_now and done < steps:
            remaining = format.duration(progress.step["remaining_seconds"])
            cells.append(Text(f"{remaining} left", style="dim"))
    bar.add_row(*cells)
    parts.append(bar)
    if progress.losses:
        loss = Table.grid(padding=(0, 2))
        values = progress.losses
        # as long as the filled part of the bar above, so that each loss is below its step
        share = min(max(done / steps, 0), 1) if steps else 1
        line = sparkline(values, round(SPARK_WIDTH * share))
        spark = Text(line.ljust(SPARK_WIDTH), style="cyan")
        loss.add_row(spark, Text(f"loss {values[-1]:.4f}"))
        parts.append(loss)
    parts += [
        Text.assemble(
            (f"evaluation at epoch {evaluation['epoch']:.3g}: ", "dim"),
            (format.metrics(evaluation["metrics"]), "bold green"),
        )
        for evaluation in progress.evaluations[-3:]
    ]
    if progress.state == "running" and not (progress.steps_now and done < steps):
        parts.append(Text(progress.doing, style="cyan"))
    return Group(*parts)


def sparkline(values: list[float], width: int) -> str:
    """Draw values as `width` bars, repeating or averaging values as needed; width 0 gives "".

    A value that is not finite, such as NaN after training diverged, gets the highest bar.

    >>> sparkline([1.0, 2.0, math.nan], 3)
    '▁██'
    """
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)] if width else [0]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    else:
        values = [values[i * len(values) // width] for i in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    shares = [(value - low) / ((high - low) or 1.0) for value in values]
    return "".join(
        SPARKS[round(share * (len(SPARKS) - 1)) if math.isfinite(share) else -1] for share in shares
    )
