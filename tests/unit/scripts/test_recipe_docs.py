import dataclasses
import re
from pathlib import Path

import pytest

from ftcluster.recipe.descriptions import descriptions_of
from ftcluster.recipe.training_arguments import OtherNames
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.registry import TASKS
from scripts import recipe_docs

KINDS = [Recipe, Training, OtherNames, *(spec.fields for spec in TASKS.values())]
# words that cannot begin a noun phrase
NOT_A_NOUN = re.compile(
    r"(what|whether|how|which|that|those|left|where|with|of|of these|none|nor|so|as|for|in|to)\b",
    re.IGNORECASE,
)


def test_the_page_is_up_to_date() -> None:
    assert recipe_docs.main(["--check"]) == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_has_a_noun_phrase_and_nothing_else_has(kind: type) -> None:
    described = descriptions_of(kind)
    assert described.keys() == {field.name for field in dataclasses.fields(kind)}
    for name, description in described.items():
        assert not NOT_A_NOUN.match(description), name
        assert description.endswith("."), name


def test_every_field_has_a_row_in_its_section() -> None:
    sections = dict(
        re.findall(
            r"^## ([^\n]+)\n\n(.*?)(?=\n\n## |\Z)", recipe_docs.page(), re.MULTILINE | re.DOTALL
        )
    )
    for name, spec in TASKS.items():
        text = sections[name] + (sections["Adapters"] if spec.can_train_adapters else "")
        for field in dataclasses.fields(spec.fields):
            assert f"\n| `{field.name}` | " in text, (name, field.name)


def test_a_check_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "recipe-fields.md"
    assert recipe_docs.main(["--check"], page) == 1
    assert not page.exists()
    assert recipe_docs.main([], page) == 0
    page.write_text(page.read_text().replace("5e-05", "5e-06"))
    capsys.readouterr()
    assert recipe_docs.main(["--check"], page) == 1
    said = "error: docs/recipe-fields.md is not up to date; run scripts/recipe-docs\n"
    assert capsys.readouterr().err == said
    assert "5e-06" in page.read_text()


def test_a_field_without_a_description_is_an_error() -> None:
    @dataclasses.dataclass
    class Fields:
        """Fields of nothing.

        Attributes:
            first: number of something.
        """

        first: int = 0
        second: int = 0

    with pytest.raises(SystemExit, match="second is missing in the Attributes"):
        [*recipe_docs._rows(recipe_docs.keys_of(Fields))]


def test_special_characters_are_escaped_outside_of_code() -> None:
    text = "a <b> of `x_*|` and snake_case [1] * 2"
    assert recipe_docs.markdown(text) == r"a \<b> of `x_*|` and snake_case \[1\] \* 2"
