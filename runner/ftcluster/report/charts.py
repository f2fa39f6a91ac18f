"""Altair charts and their SVG, rendered without a browser. A chart draws one mark for each row of
data.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from ftcluster.text.printable import printable

Rows = Sequence[Mapping[str, Any]]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

COMPUTE, COMMUNICATION, INPUT, WAITING = "#2f6fb5", "#e07b1a", "#12908a", "#b7bcc5"
PARTS = {
    "matmuls": "#1d4e89", "other work": "#6fa3d8", "communication": COMMUNICATION,
    "input": INPUT, "waiting": WAITING,
}  # fmt: skip
SHARES = {
    "compute": COMPUTE, "communication": COMMUNICATION, "input": INPUT, "waiting": WAITING,
}  # fmt: skip
STEP = {
    "forward": "#6fa3d8", "backward": COMPUTE, "optimizer": INPUT, "blocked": WAITING,
    "exchange": COMMUNICATION,
}  # fmt: skip
SPANS = {
    "starting": "#d3d7de", "loading": "#a9b4c4", "training": "#2f6fb5", "evaluating": "#12908a",
    "saving": "#8a63b8", "restarting": "#cc3d3d",
}  # fmt: skip
# palette for colour-blind readers, without yellow: Okabe and Ito 2008 (Color Universal Design)
RUNS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
UNUSED = "#eceef1"
POINTS = 200  # maximum number of points of a curve
ROW = 22  # height of a bar in pixels
CELLS, CELL = 16, 20  # number of cores in a line, and the size of a core in pixels
FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
WIDTH, SIZE = 340, 13  # width of a picture, which fits on a phone, and font size, in pixels
THEME = {
    "font": FONT,
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": SIZE, "titleFontSize": SIZE, "titleFontWeight": "normal",
        "gridColor": "#e4e7eb", "domainColor": "#9aa3af", "tickColor": "#9aa3af",
        "labelColor": "#374151", "titleColor": "#374151",
    },
    "legend": {
        "orient": "top", "title": None, "labelFontSize": SIZE, "labelLimit": 330, "columns": 2,
        "labelColor": "#374151", "symbolType": "square", "offset": 4,
    },
    "header": {"labelFontSize": SIZE, "title": None},
}  # fmt: skip
# Vega labels a whole line with its first point, so lines get no title
MARK = re.compile(r'(<path (?![^>]*"line mark")[^>]*aria-label="([^"]*)"[^>]*?)(?:/>|></path>)')


def svg_of(chart: alt.TopLevelMixin, description: str) -> str:
    """Return the chart as an inline SVG element; hovering over a mark shows its label."""
    # the library aborts the process on characters that change the text direction
    spec = printable(chart.to_dict())
    spec["config"] = THEME
    text: str = vl_convert.vegalite_to_svg(spec)
    text = MARK.sub(r"\1><title>\2</title></path>", text)
    label = re.sub(r'[<>&"]', " ", description)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def curve(rows: Rows, x: str, y: str, x_title: str, y_title: str, zero: bool = False) -> Chart:
    """Draw a line for each run.

    Args:
        rows: data with the fields x, y and run.
        zero: True to begin the y axis at 0.
    """
    # the default format rounds the label of a single value to an integer
    form = alt.Undefined if len({row[y] for row in rows}) > 1 else ".3~r"
    lines = (
        alt.Chart(alt.InlineData(list(rows)))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14, opacity=0.9))
        .encode(
            x=alt.X(
                f"{x}:Q", title=x_title, axis=alt.Axis(tickCount=6),
                scale=alt.Scale(zero=False, nice=False),
            ),
            y=alt.Y(
                f"{y}:Q", title=y_title, axis=alt.Axis(tickCount=5, format=form),
                scale=alt.Scale(zero=zero),
            ),
            color=_by_run(rows),
        )
    )  # fmt: skip
    return _fitted(lines, 220)


def points(rows: Rows, x_title: str, y_title: str, log: bool) -> Chart:
    """Draw a point for each row.

    Args:
        rows: data with the fields x, y and run.
        log: True to make the x axis logarithmic.
    """
    kind: Any = "log" if log else "linear"
    chart = (
        alt.Chart(alt.InlineData(list(rows)))
        .mark_point(filled=True, size=70, opacity=0.8, color=COMPUTE)
        .encode(
            x=alt.X(
                "x:Q", title=x_title, axis=alt.Axis(tickCount=4, format="~g"),
                scale=alt.Scale(type=kind, zero=False, padding=12),
            ),
            y=alt.Y(
                "y:Q", title=y_title, axis=alt.Axis(tickCount=5),
                scale=alt.Scale(zero=False, padding=12),
            ),
            detail="run:N",
        )
    )  # fmt: skip
    return _fitted(chart, 220)


def bars(rows: Rows, x_title: str) -> Chart:
    """Draw a bar of length `value` for each `name`, in the colour of its run."""
    chart = (
        alt.Chart(alt.InlineData(list(rows)))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title=x_title, axis=alt.Axis(tickCount=5)),
            y=_names(),
            color=_by_run(rows),
        )
    )
    return _fitted(chart, _height(rows))


def shares(rows: Rows, parts: Mapping[str, str], x_title: str, percent: bool = False) -> Chart:
    """Draw a stacked bar for each `name`.

    Args:
        rows: data with the fields name, part and value.
        parts: colour of each part by name, in the order of the bar.
        percent: True if values are fractions, to be shown as percentages.
    """
    order = list(parts)
    ordered = [{**row, "order": order.index(row["part"])} for row in rows]
    form, scale = ("%", alt.Scale(domain=[0, 1])) if percent else (alt.Undefined, alt.Undefined)
    chart = (
        alt.Chart(alt.InlineData(ordered))
        .mark_bar()
        .encode(
            x=alt.X(
                "value:Q", title=x_title, axis=alt.Axis(tickCount=5, format=form), stack="zero",
                scale=scale,
            ),
            y=_names(),
            color=_colours("part", parts),
            order="order:Q",
        )
    )  # fmt: skip
    return _fitted(chart, _height(rows) + 40)


def step_line(spans: Sequence[tuple[str, str, float, float]], width: int = WIDTH) -> Chart:
    """Draw the parts of a step as bars: the work of the cores above the exchanges of gradients.

    Args:
        spans: kind of STEP, a note, and begin and end in seconds.
    """
    rows = [
        {"row": "network" if kind == "exchange" else "cores", "kind": kind,
         "began": 1e3 * began, "ended": 1e3 * ended}
        # later bars are drawn on top
        for kind, _note, began, ended in sorted(spans, key=lambda span: span[0] == "blocked")
    ]  # fmt: skip
    kinds = {kind: colour for kind, colour in STEP.items() if any(kind == s[0] for s in spans)}
    chart: Chart = (
        alt.Chart(alt.InlineData(rows))
        .mark_bar(stroke="white", strokeWidth=0.7)
        .encode(
            x=alt.X("began:Q", title="milliseconds of a step", axis=alt.Axis(tickCount=8)),
            x2="ended:Q",
            y=alt.Y("row:N", title=None, sort=["cores", "network"]),
            color=_colours("kind", kinds),
        )
        .properties(width=width, height=4 * ROW)
    )
    return chart


def time_line(rows: Rows, marks: Rows) -> Chart:
    """Draw the activities of each run over time, in minutes since the launch.

    Args:
        rows: data with the fields run, doing, began and ended.
        marks: data of restarts and checkpoints, with the fields run, what and at.
    """
    y = alt.Y("run:N", title=None, sort=None, axis=alt.Axis(labelLimit=130))
    x = "minutes since the launch"
    spans = (
        alt.Chart(alt.InlineData(list(rows)))
        .mark_bar(height=18)
        .encode(x=alt.X("began:Q", title=x), x2="ended:Q", y=y, color=_colours("doing", SPANS))
    )
    shapes = {"checkpoint": "diamond", "restart": "triangle-down"}
    symbols = (
        alt.Chart(alt.InlineData(list(marks)))
        .mark_point(
            filled=True, size=70, color="#111827", stroke="white", strokeWidth=1, yOffset=-13
        )
        .encode(
            x=alt.X("at:Q", title=x),
            y=y,
            shape=alt.Shape(
                "what:N",
                scale=alt.Scale(domain=list(shapes), range=list(shapes.values())),
                legend=alt.Legend(columns=1) if marks else None,
            ),
        )
    )
    height = 46 * len({row["run"] for row in rows})
    return _fitted(alt.layer(spans, symbols), height + 110)


def scaling(points: Rows, ideal: Rows, expected: Rows, x_title: str) -> Chart:
    """Draw samples per second by number of hosts or ranks.

    Args:
        points: measurements, with the fields x, y and run.
        ideal: points of the line through the origin and the measurement with the smallest x.
        expected: points of the line from the measurement with the largest x to the predictions.
    """

    def line(rows: Rows, dash: list[int], colour: str, of: str) -> Chart:
        chart: Chart = (
            alt.Chart(alt.InlineData([{**row, "of": of} for row in rows]))
            .mark_line(strokeDash=dash, color=colour)
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
        )
        return chart

    most = max(row["x"] for row in (*points, *expected, *ideal))
    axis = alt.Axis(tickMinStep=1, tickCount=min(8, int(most)), format="d")
    measured = (
        alt.Chart(alt.InlineData(list(points)))
        .mark_point(filled=True, size=80, color=COMPUTE, opacity=1)
        .encode(
            x=alt.X("x:Q", title=x_title, axis=axis, scale=alt.Scale(domain=[0, most], nice=False)),
            y=alt.Y("y:Q", title="samples/s", axis=alt.Axis(tickCount=5)),
        )
    )
    texts = [
        {**row, "text": f"{x_title}: {row['x']}; predicted samples/s: {row['y']:.1f}"}
        for row in expected[1:]
    ]
    rings = (
        alt.Chart(alt.InlineData(texts))
        .mark_point(size=80, color=COMMUNICATION, opacity=1)
        .encode(x="x:Q", y="y:Q", description="text:N")
    )
    layers = alt.layer(
        line(ideal, [4, 4], "#9aa3af", "ideal"),
        line(expected, [2, 3], COMMUNICATION, "predicted"),
        line(points, [1, 0], COMPUTE, "measured"),
        rings,
        measured,
    )
    return _fitted(layers, 260)


def efficiency(measured: Rows, predicted: Rows, references: Rows, title: str) -> Chart:
    """Draw the efficiency by number of hosts for each mode.

    Args:
        measured: data with the fields hosts, mode and efficiency.
        predicted: predictions with the same fields, drawn as dashed lines.
        references: published results, with the fields hosts, efficiency and of.
    """
    modes = list(dict.fromkeys(row["mode"] for row in measured))
    scale = alt.Scale(domain=modes, range=[RUNS[n % len(RUNS)] for n in range(len(modes))])

    def points(rows: Rows) -> alt.Chart:
        return alt.Chart(alt.InlineData(list(rows))).encode(
            x=alt.X(
                "hosts:Q", title="hosts; dashed: predicted", scale=alt.Scale(type="log", base=2)
            ),
            y=alt.Y("efficiency:Q", axis=alt.Axis(format="%")),
        )

    colour = alt.Color("mode:N", scale=scale)
    layers: Chart = alt.layer(
        points(predicted).mark_line(strokeDash=[6, 4]).encode(color=colour),
        points(measured).mark_line(point=True).encode(color=colour),
        points(references).mark_point(shape="diamond", color="#888888").encode(tooltip="of:N"),
    )
    return layers.properties(width=600, height=400, title=title)


def cores(nodes: Sequence[tuple[str, Sequence[int]]], rank_of: Mapping[int, int]) -> Chart:
    """Draw the cores of a host as squares in the colours of their ranks.

    Args:
        nodes: name and core ids of each NUMA node.
        rank_of: rank that uses a core, by core id; unused cores are missing.
    """
    rows, lines = [], 0
    for name, cpus in nodes:
        lines += 1  # the line with the node's name
        for place, cpu in enumerate(cpus):
            rank = rank_of.get(cpu)
            rows.append(
                {
                    "node": name if not place else "",
                    "column": place % CELLS,
                    "row": lines + place // CELLS,
                    "core": cpu,
                    "rank": "unused" if rank is None else f"rank {rank}",
                    "text": f"core {cpu}: {'unused' if rank is None else f'rank {rank}'}",
                }
            )
        lines += -(-len(cpus) // CELLS)
    ranks = sorted(set(rank_of.values()))
    colours = {f"rank {rank}": RUNS[place % len(RUNS)] for place, rank in enumerate(ranks)}
    colour = alt.Color(
        "rank:N",
        scale=alt.Scale(domain=[*colours, "unused"], range=[*colours.values(), UNUSED]),
        legend=None,
    )
    x = alt.X("column:O", axis=None, scale=alt.Scale(domain=list(range(CELLS)), paddingInner=0.12))
    y = alt.Y("row:O", axis=None, scale=alt.Scale(domain=list(range(lines)), paddingInner=0.12))
    base = alt.Chart(alt.InlineData(rows))
    squares = base.mark_rect(cornerRadius=3).encode(
        x=x, y=y, color=colour, description=alt.Description("text:N")
    )
    numbers = base.mark_text(fontSize=11).encode(
        x=x, y=y, text="core:N",
        color=alt.condition("datum.rank == 'unused'", alt.value("#6b7280"), alt.value("white")),
    )  # fmt: skip
    names = (
        base.transform_filter("datum.node != ''")
        .mark_text(fontSize=12, align="left", dx=-9, dy=-18, color="#374151")
        .encode(x=x, y=y, text="node:N")
    )
    layers: Chart = alt.layer(squares, numbers, names)
    return layers.properties(width=CELLS * CELL, height=lines * CELL)


def thinned(rows: Rows, most: int = POINTS) -> list[Mapping[str, Any]]:
    """Return every n-th row and the last row, about `most` rows in total.

    >>> thinned([{"x": n} for n in range(10)], most=4)
    [{'x': 2}, {'x': 5}, {'x': 8}, {'x': 9}]
    """
    step = -(-len(rows) // most)
    return [row for number, row in enumerate(rows, 1) if number % step == 0 or number == len(rows)]


def _fitted(chart: Chart, height: int) -> Chart:
    """Return the chart with the page's width and a total height in pixels, including its axes."""
    size = alt.AutoSizeParams(type="fit", contains="padding")
    fitted: Chart = chart.properties(width=WIDTH, height=height, autosize=size)
    return fitted


def _names() -> alt.Y:
    """Return the y axis with the names of bars, in the order of the rows."""
    return alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=150))


def _by_run(rows: Rows) -> alt.Color:
    """Return the encoding of runs as colours, with a legend if there are several runs."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    return alt.Color(
        "run:N",
        scale=alt.Scale(domain=runs, range=[RUNS[n % len(RUNS)] for n in range(len(runs))]),
        legend=alt.Legend() if len(runs) > 1 else None,
    )


def _colours(field: str, colours: Mapping[str, str]) -> alt.Color:
    return alt.Color(
        f"{field}:N", scale=alt.Scale(domain=list(colours), range=list(colours.values()))
    )


def _height(rows: Rows) -> int:
    """Return the height in pixels of a bar chart including its axis."""
    return 60 + ROW * len({row["name"] for row in rows})
