"""Altair's pictures as SVG for a page, without a browser and without network."""

import re

import altair
import vl_convert

FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
WIDTH, SIZE = 340, 13  # pixels of a picture, which a phone shows as they are; and of its text
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
# the label of a whole line is that of its first point
MARK = re.compile(r'(<path (?![^>]*"line mark")[^>]*aria-label="([^"]*)"[^>]*?)(?:/>|></path>)')


def svg_of(chart: altair.TopLevelMixin, description: str) -> str:
    """The picture as an element of a page; what its marks stand for is shown at the pointer."""
    spec = chart.to_dict()
    spec["config"] = THEME
    text: str = vl_convert.vegalite_to_svg(spec)
    text = MARK.sub(r"\1><title>\2</title></path>", text)
    label = re.sub(r'[<>&"]', " ", description)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
