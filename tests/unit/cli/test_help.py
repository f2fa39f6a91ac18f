"""Help, recipes, versions and completion."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ftcluster.cli.commands import build_parser, read_arguments
from ftcluster.cli.help import EXAMPLES, GROUPS
from ftcluster.cli.main import main
from ftcluster.errors import RecipeError
from ftcluster.recipe.recipe import known_recipes, load_recipe, parse_recipe
from ftcluster.recipe.yaml_loader import read_value
from ftcluster_common import __version__
from ftcluster_common.recipe import Training
from tests.programs import ROOT
from tests.unit.shell import Shell

NAMES = [
    path.stem.replace("_", "-")
    for path in (ROOT / "runner/ftcluster/cli").glob("*.py")
    if "def add_parser(commands: Any)" in path.read_text()
]


def output(shell: Shell, *words: str) -> str:
    return shell(words).out


def test_every_command_is_in_a_group_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(NAMES)
    assert not {*NAMES} - EXAMPLES.keys()
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == [
        name for names in GROUPS.values() for name in names
    ]
    assert "\nmake a cluster:\n  setup  " in out


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_valid_and_in_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*name.split(), "--help"])
    out = capsys.readouterr().out
    for example in EXAMPLES[name]:
        assert f"\n  {example}\n" in out
        words = shlex.split(example, comments=True)
        if words[0] == "ftcluster":
            assert callable(read_arguments(words[1:]).run)


def test_where_to_begin_and_which_recipes_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    shown = capsys.readouterr().out.partition("\nrecipes:\n")[2].partition("\n\n")[0]
    assert " ".join(shown.split()) == ", ".join(known_recipes())
    assert max(map(len, shown.splitlines())) <= 80
    assert main([]) == 2
    out = capsys.readouterr().out
    assert "ftcluster demo" in out
    assert "ftcluster setup inventory.ini" in out


def test_help_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "50", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert "\x1b[1mexamples:\x1b[0m" in out
    plain = out.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 50


def test_recipes(shell: Shell, tmp_path: Path) -> None:
    out = output(shell, "recipes")
    assert [line.split()[0] for line in out.splitlines()[1:-4]] == list(known_recipes())
    found = json.loads(output(shell, "recipes", "--json"))
    assert [one["name"] for one in found] == list(known_recipes())
    assert all(one["description"] and "Needs:" not in one["description"] for one in found)
    text = known_recipes()["mrpc"].read_text()
    assert output(shell, "recipes", "mrpc") == text
    assert json.loads(output(shell, "recipes", "mrpc", "--json"))["text"] == text
    (tmp_path / "my.yml").write_text("model: m\ndata: d\n")
    own = json.loads(output(shell, "recipes", str(tmp_path / "my.yml"), "--json"))
    assert (own["name"], own["description"]) == ("my", "")
    assert main(["recipes", "none"]) == 2


def test_fields_of_recipes(shell: Shell) -> None:
    found = {
        one["field"]: one for one in json.loads(output(shell, "recipes", "--fields", "--json"))
    }
    rate = found["training.learning_rate"]
    assert rate["default"] == f"{Training().learning_rate:g}"
    assert rate["value"] == "a number; more than 0"
    assert found["model"]["default"] == "(needed)"
    assert {"text_columns", "doc_stride", "block_size"} <= found.keys()
    out = output(shell, "recipes", "squad", "--fields")
    assert "\ndoc_stride " in out
    assert "\nblock_size " not in out


def test_fields_of_a_recipe_are_those_that_it_trains_with(shell: Shell) -> None:
    rows = json.loads(output(shell, "recipes", "mrpc", "--fields", "--json"))
    found = {row["field"]: row for row in rows}
    recipe = load_recipe("mrpc")
    assert found["training.learning_rate"]["in the recipe"] == f"{recipe.training.learning_rate:g}"
    assert found["model"]["in the recipe"] == recipe.model
    assert found["text_columns"]["in the recipe"] == "sentence1,sentence2"


def test_command_schema_and_page_describe_fields_alike(shell: Shell) -> None:
    rows = json.loads(output(shell, "recipes", "embed", "--fields", "--json"))
    assert [row["field"] for row in rows if not row["meaning"]] == []
    properties = json.loads(output(shell, "recipes", "--schema"))["properties"]
    training = properties["training"]["properties"]
    page = (ROOT / "docs/recipe-fields.md").read_text()
    shown = " ".join(output(shell, "recipes", "embed", "--fields").split())
    for row in rows:
        name = row["field"].removeprefix("training.")
        described = (properties if name == row["field"] else training)[name]["description"]
        assert row["meaning"] in described
        assert " ".join(row["meaning"].split()) in shown
        # the page escapes these characters
        meaning = re.sub(r"([*\[\]<])", r"\\\1", row["meaning"])
        assert meaning[1:] in page.replace("\\|", "|"), name


def test_a_field_with_several_meanings_names_their_tasks(shell: Shell) -> None:
    rows = json.loads(output(shell, "recipes", "--fields", "--json"))
    [length] = [row["meaning"] for row in rows if row["field"] == "max_length"]
    assert "text-classification, text-distillation: maximum tokens of a row's texts" in length
    assert "preference-tuning, unpaired-preference-tuning: maximum tokens of a conver" in length
    assert "text-ranking: " in length


def read(text: str) -> Any:
    """Parse a recipe as YAML 1.2, as editors do; there 5e-5 is a number."""

    def values(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: values(one) for name, one in found.items()}
        return read_value(found) if isinstance(found, str) else found

    return values(yaml.load(text, yaml.BaseLoader))


def test_the_schema_takes_what_recipes_take(shell: Shell) -> None:
    schema = json.loads(output(shell, "recipes", "--schema"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for path in known_recipes().values():
        assert not [*validator.iter_errors(read(path.read_text()))], path
    plain = {"model": "m", "data": "d"}
    for good in (
        {"class_weights": {"a": 2}}, {"class_weights": "balanced"}, {"text_columns": "a, b"},
        {"training": {"eval_strategy": False}}, {"training": {"seed": None}}, {"training": None},
        {"task": "causal-lm", "block_size": 8},
    ):  # fmt: skip
        assert validator.is_valid({**plain, **good}), good
        assert parse_recipe(yaml.safe_dump({**plain, **good}), "my.yml")
    for bad in (
        {"learning_rat": 1}, {"block_size": 8}, {"max_length": 0}, {"max_length": "long"},
        {"training": {"seed": -1}}, {"training": {"optim": "sgd"}}, {"task": "causal"},
        {"metrics": ["f2"]}, {"task": "causal-lm", "text_columns": "a"}, {"model": None},
    ):  # fmt: skip
        assert not validator.is_valid({**plain, **bad}), bad
        with pytest.raises(RecipeError):
            parse_recipe(yaml.safe_dump({**plain, **bad}), "my.yml")


@pytest.mark.parametrize("words", ["recipes", "recipes --fields", "stacks", "stacks native"])
def test_results_fit_a_narrow_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    for name, value in {"COLUMNS": "60", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    lines = re.sub(r"\x1b\[\d*m", "", output(shell, *words.split())).splitlines()
    assert [line for line in lines if len(line) > 60 and " " in line.strip()] == []


def test_versions(shell: Shell) -> None:
    found = json.loads(output(shell, "version", "--json"))
    assert found.keys() == {"ftcluster", "python", "ansible-core"}
    assert found["ftcluster"] == __version__
    assert output(shell, "version").startswith(f"ftcluster {__version__}, python ")


@pytest.mark.parametrize("line", ["ftcluster tr", "ftcluster train --da", "ftcluster bench sc"])
def test_bash_completes_commands_and_options(shell: Shell, tmp_path: Path, line: str) -> None:
    (tmp_path / "completion").write_text(output(shell, "completion", "bash"))
    words = line.split()
    done = subprocess.run(
        ["bash", "-c", 'source ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); '
         '_shtab_ftcluster; echo "${COMPREPLY[@]}"', "bash", *words],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split()[0].startswith(words[-1])
    assert main(["completion"]) == 2
    assert build_parser().commands.parsers.keys() == {*NAMES}


def test_a_command_starts_without_what_others_import() -> None:
    code = "import sys; from ftcluster.cli.commands import read_arguments as r; r(sys.argv[1:]); "
    code += "print(*(m for m in sys.modules if m.startswith('ftcluster.cli')))"
    path = f"{ROOT / 'runner'}:{ROOT / 'common'}"
    done = subprocess.run(
        [sys.executable, "-c", code, "version"], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    named = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert named & {*NAMES} == {"version"}
