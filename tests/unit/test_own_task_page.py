"""The code on docs/own-task.md equals the code of the examples."""

import re

import pytest

from tests.programs import ROOT

PAGE = (ROOT / "docs/own-task.md").read_text(encoding="utf-8")
NAMES = ("focal_loss", "word_count", "worst_class")
EXAMPLES = [(ROOT / f"examples/{name}.py").read_text(encoding="utf-8") for name in NAMES]


@pytest.mark.parametrize("shown", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_shown_code_is_in_an_example(shown: str) -> None:
    assert any(shown in text for text in EXAMPLES)
