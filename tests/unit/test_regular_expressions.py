"""No regular expression takes quadratic time on a long text that repeats its beginning.

All regular expressions of the product are tested, because nearly all texts that they match are
foreign.
"""

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("runner", "common", "train", "plugins")
CHARACTERS = 12_000
SECONDS = 0.08  # CPU seconds; a linear search needs a hundredth of that
UNITS = {
    *" \t\n a0A-_.,:;/@=\"'<>#$%+",
    "//",
    "a ",
    "a.",
    "0.",
    "--",
    " #",
    " --",
    "a=",
    "a:",
    "${",
}
METHODS = ("fullmatch", "match", "search", "sub", "split", "findall", "finditer")


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield the place, the method and the text of each regular expression."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            tree = ast.parse(text)
            names = {
                id(node.value): getattr(node.targets[0], "id", "")
                for node in ast.walk(tree) if isinstance(node, ast.Assign)
            }  # fmt: skip
            for node in ast.walk(tree):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if getattr(node.func.value, "id", "") != "re" or not node.args:
                    continue
                method, pattern = node.func.attr, node.args[0]
                if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
                    continue
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                if method in METHODS:
                    yield place, method, pattern.value
                elif method == "compile" and (name := names.get(id(node))):
                    uses = set(re.findall(rf"\b{name}\.({'|'.join(METHODS)})\b", text))
                    for used in uses or {"search"}:
                        yield place, used, pattern.value


def seconds(method: str, pattern: str) -> tuple[float, str]:
    """Return the longest CPU time of an expression, and the repeated text that caused it."""
    compiled = re.compile(pattern)
    call = compiled.search if method not in ("fullmatch", "match") else getattr(compiled, method)
    longest = (0.0, "")
    for unit in sorted(UNITS | set(pattern) - set("\\[](){}?*+^$|")):
        for tail in ("", "\0!"):
            text = unit * (CHARACTERS // len(unit)) + tail
            began = time.process_time()
            call(text)
            longest = max(longest, (time.process_time() - began, unit))
            if longest[0] > SECONDS:
                return longest
    return longest


def test_no_expression_takes_quadratic_time() -> None:
    slow, every = {}, set(expressions())
    assert len(every) > 100
    for place, method, pattern in every:
        took, unit = seconds(method, pattern)
        if took > SECONDS:
            slow[place] = (method, pattern, unit)
    assert not slow


@pytest.mark.parametrize("pattern", [r"(^|\s+)#.*$", r"\s+(?=--)", r"//\S*@"])
def test_the_measurement_itself(pattern: str) -> None:
    assert seconds("search", pattern)[0] > SECONDS
