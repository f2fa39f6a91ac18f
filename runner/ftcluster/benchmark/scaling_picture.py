"""The picture of `bench scaling`: efficiency by number of hosts, as SVG. Pure functions only."""

from collections.abc import Iterator, Mapping
from html import escape
from math import log2
from typing import Any

WIDTH, HEIGHT = 960, 480
LEFT, RIGHT, TOP, BOTTOM = 60, 340, 40, 50
COLOURS = (
    "#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#d44c47", "#956a3b", "#5f6b7a",
)  # fmt: skip
REFERENCE = "#888888"


def picture(result: Mapping[str, Any]) -> str:
    """The measured points, what the model predicts (dashed), and the references (diamonds)."""
    model = result["model"]
    predicted = model["predicted"] if model else []
    points, references = result["points"], result["references"]
    most = max(one["hosts"] for one in (*points, *predicted, *references))
    high = max(1.0, *(one["efficiency"] for one in points))

    def x(hosts: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log2(hosts) / max(log2(most), 1)

    def y(efficiency: float) -> float:
        return float(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * efficiency / high)

    def parts() -> Iterator[str]:
        yield from _axes(x, y, most, high)
        modes = sorted({one["mode"] for one in points if one["mode"]})
        for number, mode in enumerate(modes):
            colour = COLOURS[number % len(COLOURS)]
            of_mode = [one for one in points if one["mode"] in (mode, None)]
            place = [(x(one["hosts"]), y(one["efficiency"])) for one in of_mode]
            yield _line(place, colour)
            yield from (
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in place
            )
            further = [(x(one["hosts"]), y(one["efficiency"][mode])) for one in predicted]
            yield _line([place[-1], *further], colour, dashed=True)
            yield _label(number, mode, colour)
        for number, one in enumerate(references):
            a, b = x(one["hosts"]), y(one["efficiency"])
            yield f'<path d="M{a:.1f} {b - 6:.1f}l6 6l-6 6l-6-6z" fill="{REFERENCE}"/>'
            text = f"{one['hosts']}: {one['efficiency']:.0%}, {one['of'].split(' (')[0]}"
            yield _label(len(modes) + 1 + number, text, REFERENCE, size=10)

    body = "\n".join(parts())
    title = escape(f"{result['recipe']}: efficiency by number of hosts")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="white"/>\n<text x="{LEFT}" y="22" font-size="15">{title}</text>\n{body}\n</svg>\n'
    )


def _axes(x: Any, y: Any, most: int, high: float) -> Iterator[str]:
    for percent in range(0, round(100 * high) + 1, 20):
        at = y(percent / 100)
        yield f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{percent} %</text>'
    hosts = 1
    while hosts <= most:
        yield _below(x(hosts), 20, str(hosts))
        hosts *= 2
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _below(middle, 42, "hosts; dashed: predicted")


def _below(x: float, distance: int, text: str) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - BOTTOM + distance}"'
    return f'<text {place} text-anchor="middle">{text}</text>'


def _line(place: list[tuple[float, float]], colour: str, dashed: bool = False) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in place)
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _label(row: int, text: str, colour: str, size: int = 12) -> str:
    place = f'x="{WIDTH - RIGHT + 12}" y="{TOP + 12 + 18 * row}"'
    return f'<text {place} fill="{colour}" font-size="{size}">{escape(text)}</text>'
