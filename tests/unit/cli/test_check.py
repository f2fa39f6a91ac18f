"""The exit code of `ftcluster check`."""

from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.operations.setup import check

WARNING = {"host": "a", "what": "port 29500 is open to others", "hint": "", "kind": "open"}


@pytest.mark.parametrize(
    ("state", "warnings", "usual", "strict"),
    [("fit", [], 0, 0), ("fit", [WARNING], 0, 1), ("unfit", [], 1, 1)],
)
def test_warnings_count_for_cron(
    monkeypatch: pytest.MonkeyPatch, state: str, warnings: list[dict[str, Any]], usual: int,
    strict: int,
) -> None:  # fmt: skip
    found = {"inventory": "i", "state": state, "warnings": warnings, "pairs": [], "hosts": []}
    monkeypatch.setattr(check, "collect", lambda *_: None)
    monkeypatch.setattr(check.check_report, "document", lambda _: found)
    monkeypatch.setattr(check.check_text, "lines", lambda _: [])
    assert main(["check", "localhost"]) == usual
    assert main(["check", "localhost", "--strict"]) == strict
