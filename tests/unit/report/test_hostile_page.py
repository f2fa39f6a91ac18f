"""Foreign text adds no element, attribute or script to the page, and reverses no text."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ftcluster.report.files import RunFiles
from ftcluster.report.page import render
from tests.fuzz.markup import elements
from tests.unit.report.runs import run_files

NOW = datetime(2026, 11, 23, 4, 5, tzinfo=UTC)
# values that the page treats as numbers or its own names, not as text
READ = ("event", "numa", "cpus", "price_per_hour", "state", "spans")
HOSTILE = (
    "\u202egpj.exe\u2066\x1b]52;c;YQ==\x07\x9b2J"
    "\"><script>x</script><img src=x onerror=y>'&lt;a href=javascript:z {{ 7*7 }}"
    "</title></svg></style><form action=//evil><base href=//evil><!--"
)


def made_of(value: Any, more: str, key: str = "") -> Any:
    """Return a document with a suffix on each of its texts."""
    if isinstance(value, dict):
        # names of metrics are foreign too
        add = more if key == "metrics" else ""
        return {f"{name}{add}": made_of(one, more, name) for name, one in value.items()}
    if isinstance(value, list):
        return [made_of(one, more, key) for one in value]
    return value + more if isinstance(value, str) and key not in READ else value


def runs(more: str) -> list[RunFiles]:
    """Return three runs of a sweep, with this suffix on all texts."""
    found = []
    for number in range(3):
        files = run_files(f"mrpc-20261123-013759-{number}abc", hosts=2 if number else 1)
        recipe = {**files.record["recipe"], "learning_rate": number / 10}
        record = made_of({**files.record, "recipe": recipe}, more)
        events = [made_of(event, more) for event in files.events]
        notice = {"event": "notice", "time": events[-1]["time"], "message": f"a{more}"}
        error = {**notice, "event": "error", "message": f"b{more}", "hint": f"c{more}"}
        files = replace(files, run=f"{files.run}{more}", record=record)
        found.append(replace(files, events=[*events[:-1], notice, error, events[-1]]))
    return found


def test_foreign_text_adds_nothing() -> None:
    plain = Counter(elements(render(runs(""), NOW)))
    page = render(runs(HOSTILE), NOW)
    assert Counter(elements(page)) == plain
    assert not {"script", "img", "form", "base", "iframe"} & {tag for tag, _ in plain}
    assert not [name for _, names in plain for name in names if name.startswith("on")]
    assert page.count("{{ 7*7 }}&lt;/title&gt;") > 20
    assert not set("\u202e\u2066\x1b\x07\x9b") & set(page)
    assert "default-src 'none'" in page
    assert "form-action 'none'" in page
