"""Make the tables of how costs grow, and docs/scale.svg.

RESULTS is what `bench.scale` and `bench.scale_commands` have measured; `bench.figures` writes the
pages.
"""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import vl_convert

from bench.runs import ROOT
from bench.scale_commands import METRICS_FILE
from ftcluster.report.charts import THEME

RESULTS = ROOT / "bench/results/2026-11-26-scale.json"
PICTURE = ROOT / "docs/scale.svg"
Rows = Sequence[dict[str, Any]]


def read() -> dict[str, Any]:
    """Return the measurements."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as a Markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (heads, *rows)]
    return "\n".join((lines[0], "|" + "---|" * len(heads), *lines[1:]))


def tables(found: dict[str, Any]) -> str:
    """Return all tables, each with its machine."""
    machine = found["machine"]
    loads = [one["load"] for one in (*found["ranks"], *found["lines"])]
    ranks = [
        (
            one["ranks"], f"{one['greeted']:.2g}", f"{one['supervisor_cpu']:.2%}",
            f"{one['guardian_cpu']:.2%}", f"{one['memory_mb']:.0f}", one["files"],
            f"{one['hung']['seconds']:.1f}", f"{one['stopped']['seconds']:.1f}",
            f"{one['stopped']['again']:.1f}", f"{one['ended']:.1f}",
        )
        for one in found["ranks"]
    ]  # fmt: skip
    lines = [
        (one["ranks"], f"{one['greeted']:.2g}", f"{one['supervisor_cpu']:.2%}",
         f"{one['memory_mb']:.0f}", one["files"])
        for one in found["lines"]
    ]  # fmt: skip
    parts = [
        f"Measured on {machine['cores']} cores of {machine['cpu']} at a load of "
        f"{min(loads):.1f} to {max(loads):.1f} by other work, with all guardians and ranks beside "
        "the supervisor.",
        table(
            ("ranks", "all connected after, s", "supervisor, of a core", "a guardian, of a core",
             "supervisor's memory, MB", "its files", "hanging rank named after, s",
             "stopped rank named after, s", "all restarted after, s", "run stopped after, s"),
            ranks,
        ),
        "The supervisor alone; one process sends the reports of all guardians:",
        table(
            ("ranks", "all connected after, s", "supervisor, of a core", "memory, MB", "files"),
            lines,
        ),
        "Reading runs: the newest ones, as `ftcluster ps` does on the head, and the events of a "
        "run by a supervisor that resumes it. Of many events only both ends are read:",
        table(
            ("runs", "`ps` on the head, s"),
            [(one["runs"], one["seconds"]) for one in found["runs"]],
        ),
        table(
            ("events", "read after, s", "memory, MB"),
            [(one["events"], one["seconds"], one["memory_mb"]) for one in found["events"]],
        ),
        "Commands on a head that is the control node, with many ended runs, or with one run of "
        "many events whose log has 20 GB. The fastest of five calls:",
        table(
            ("with", "command", "s", "of a core, s", "its largest process, MB"),
            [(_with(one), _called(one["command"]), one["seconds"], one["cpu_seconds"],
              one["memory_mb"]) for one in found["commands"]],
        ),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _called(command: str) -> str:
    # the supervisor's work is not a command
    return command if command == METRICS_FILE else f"`ftcluster {command}`"


def _with(row: dict[str, Any]) -> str:
    return f"{row['runs']:,} runs" if "runs" in row else f"{row['events']:,} events"


def picture(found: dict[str, Any]) -> str:
    """Draw the costs as SVG with logarithmic axes."""

    def chart(title: str, x: str, curves: dict[str, Rows], y: str, scale: float = 1.0) -> alt.Chart:
        rows = [
            {"x": one[x], "y": max(one[y] * scale, 1e-3), "of": name}
            for name, series in curves.items()
            for one in series
        ]
        legend = alt.Legend(orient="bottom") if len(curves) > 1 else None

        def axis(field: str, title: str | None) -> dict[str, Any]:
            few = alt.Axis(tickCount=4, grid=False)
            return {"shorthand": field, "title": title, "scale": alt.Scale(type="log"), "axis": few}

        return (
            alt.Chart(alt.Data(values=rows), title=title)
            .mark_line(point=True)
            .encode(
                x=alt.X(**axis("x:Q", x)),
                y=alt.Y(**axis("y:Q", None)),
                color=alt.Color("of:N", title=None, legend=legend),
            )
            .properties(width=180, height=150)
        )

    supervisor = {"guardians": found["ranks"], "connections": found["lines"]}
    charts = (
        chart("supervisor, % of a core", "ranks", supervisor, "supervisor_cpu", 100),
        chart("all connected after, s", "ranks", supervisor, "greeted"),
        chart("ps, s", "runs", {"runs": found["runs"]}, "seconds"),
        chart("events read after, s", "events", {"events": found["events"]}, "seconds"),
    )
    spec = alt.hconcat(*charts).resolve_scale(color="independent").to_dict()
    spec["config"] = {**THEME, "background": "white"}
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def draw() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(read()) + "\n", encoding="utf-8")
