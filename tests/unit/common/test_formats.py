"""Formats of documents; each stored document has a format."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster_common.given_files import FormatError
from ftcluster_common.protocol.formats import (
    JOB,
    KINDS,
    LAUNCH,
    Kind,
    format_of,
    later_fields,
    opened,
    stamped,
)
from ftcluster_common.protocol.job import Job
from ftcluster_common.protocol.launch import Launch
from tests.programs import ROOT

TABLE = Path(__file__).with_name("json_writers.yml")
FOLDERS = ("common", "runner", "train", "plugins")
NUMBERS = re.compile(r"\bstamped\(|\"format\"|\bFORMAT\b|\"version\": __version__")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_document_is_read_with_a_number_and_without(kind: Kind) -> None:
    content = dict.fromkeys(kind.required, 1)
    written = stamped(kind, content)
    assert written == {"format": kind.format, **content}
    assert opened(kind, written) == content
    if not kind.oldest:
        assert opened(kind, content) == content


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_newer_document_is_refused_with_what_to_do(kind: Kind) -> None:
    with pytest.raises(FormatError, match=r"was written by a newer ftcluster .*: upgrade"):
        opened(kind, {"format": kind.format + 1})


def test_a_document_that_is_too_old_is_refused_with_what_to_do() -> None:
    kind = Kind("x.json", 3, oldest=2, older_hint="make it again")
    why = r"was written by an older ftcluster \(format 1\): make it again"
    with pytest.raises(FormatError, match=why):
        opened(kind, {"format": 1})
    assert opened(kind, {"format": 2, "a": 1}) == {"a": 1}


@pytest.mark.parametrize("number", [-1, True, "1", 1.0, None, [], 10**40, float("nan")])
def test_what_is_no_format_is_damage(number: Any) -> None:
    with pytest.raises(ValueError, match="its format is") as raised:
        format_of({"format": number})
    assert not isinstance(raised.value, FormatError)


def test_a_later_field_is_written_only_if_it_is_set() -> None:
    kind = Kind("x.json", 1, first_fields=frozenset({"a"}))
    assert stamped(kind, {"a": "", "b": ""}) == {"format": 1, "a": ""}
    written = stamped(kind, {"a": "", "b": "x"})
    assert (written, later_fields(kind, written)) == ({"format": 1, "a": "", "b": "x"}, ["b"])


@pytest.mark.parametrize(("kind", "form"), [(LAUNCH, Launch), (JOB, Job)])
def test_later_fields_have_defaults_that_are_not_written(kind: Kind, form: Any) -> None:
    """Hosts of format 0 refuse fields that they do not know."""
    for field in fields(form):
        if field.name not in kind.first_fields | {"run_dir"}:
            assert not field.default, f"{field.name} needs a default that is false"


def writers(path: Path) -> dict[str, str]:
    """Return the source of each function that writes JSON or YAML, by name."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    if not re.search(r"\bdumps?\(|\bstamped\(", text):
        return found

    def visit(node: ast.AST, names: tuple[str, ...], outer: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names, outer = (*names, node.name), node
        if isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Name) and node.func.id == "stamped")
            or (
                isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and (node.func.value.id, node.func.attr)
                in {(one, verb) for one in ("json", "yaml") for verb in ("dump", "dumps")}
            )
        ):
            found[".".join(names)] = ast.get_source_segment(text, outer) or ""
        for child in ast.iter_child_nodes(node):
            visit(child, names, outer)

    module = ast.parse(text)
    visit(module, (), module)
    return found


def test_each_document_that_is_kept_has_its_format() -> None:
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    listed = {
        (path, name): section
        for section, paths in table.items()
        for path, names in paths.items()
        for name in names
    }
    found = {
        (str(path.relative_to(ROOT)), name): source
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, source in writers(path).items()
    }
    unlisted = sorted(found.keys() - listed.keys())
    assert not unlisted, f"number these documents, or say in {TABLE.name} why they need no format"
    for (path, name), section in listed.items():
        source = found.get((path, name))
        if section == "numbered":
            source = source or _source(ROOT / path, name)
            assert NUMBERS.search(source), f"{path}: {name} writes no format"
        else:
            assert source, f"{path}: {name} writes nothing any more: remove it from {TABLE.name}"


def _source(path: Path, name: str) -> str:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name.rpartition(".")[2]:
            return ast.get_source_segment(text, node) or ""
    raise AssertionError(f"{path} has no {name}")
