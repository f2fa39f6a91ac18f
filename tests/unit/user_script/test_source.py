"""The features that a script's source uses."""

from pathlib import Path

import pytest

from ftcluster.user_script.source import Source, read_source


def source(folder: Path, text: str, others: dict[str, str] | None = None) -> Source:
    for name, other in {"train.py": text, **(others or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(other)
    return read_source(folder / "train.py", folder)


@pytest.mark.parametrize(
    ("text", "line", "certain"),
    [
        ("import os\nimport ipex.cpu as i", 2, True),
        ("from ipex.cpu import runtime", 1, True),
        ("try:\n    import ipex\nexcept ImportError:\n    pass", 2, False),
        ("if args.ipex:\n    import ipex", 2, False),
        ("async def f():\n    import ipex", 2, False),
    ],
)
def test_imports_and_whether_something_guards_them(
    tmp_path: Path, text: str, line: int, certain: bool
) -> None:
    [found] = [one for one in source(tmp_path, text).imports if one.module == "ipex"]
    assert (found.where, found.certain) == (f"train.py:{line}", certain)


def test_its_own_modules_are_read_and_not_counted(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "from pkg import model\nimport tools, os.path",
        {
            "pkg/__init__.py": "from . import inner",
            "pkg/model.py": "from .inner import y\nfrom ..up import z",
            "pkg/inner.py": "import deep_one",
            "tools.py": "import ipex\nimport tools, broken\nparser.add_argument('--use_ipex')",
            "broken.py": "this is not Python",
            "unused.py": "import never",
        },
    )
    where = {one.module: one.where for one in found.imports}
    assert where == {"os": "train.py:2", "deep_one": "pkg/inner.py:1", "ipex": "tools.py:1"}
    assert found.own_flags == {"use_ipex"}
    assert found.syntax_error == ""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"x = (\n", "train.py:1: "),
        (b"#!/bin/sh\necho hello\n", "train.py:2: "),
        (b"x = '\0'", "train.py:1: "),
        (
            b'{"cells": [{"cell_type": "code", "source": ["print(1)"], "metadata": {"a": true}}]}',
            "train.py:1: has no statement to run (convert a notebook with: jupyter",
        ),
        (b"# nothing yet\n", "train.py:1: has no statement to run"),
        (b"x = '\xff'\n", "train.py:1: "),
    ],
)
def test_what_is_not_python(tmp_path: Path, text: bytes, where: str) -> None:
    (tmp_path / "train.py").write_bytes(text)
    assert read_source(tmp_path / "train.py", tmp_path).syntax_error.startswith(where)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("parser.add_argument('-n', '--no-cuda')", True),
        ("@click.option('--no-cuda/--cuda')\ndef main(no_cuda): ...", True),
        ("@dataclass\nclass Mine:\n    no_cuda: bool = False", True),
        ("x = '--no_cuda'", False),
        ("call(['--no_cuda'])", False),
        ("def f(no_cuda): ...", False),
    ],
)
def test_flags_that_it_defines_itself(tmp_path: Path, text: str, own: bool) -> None:
    assert ("no_cuda" in source(tmp_path, text).own_flags) == own


def test_arguments_of_training_arguments(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "a = transformers.Seq2SeqTrainingArguments(\n    no_cuda=True,\n    bf16=flag, **more)\n"
        "b = dict(use_ipex=True)",
    ).arguments
    assert [(one.name, one.value, one.where) for one in found] == [
        ("no_cuda", "True", "train.py:2"),
        ("bf16", "", "train.py:3"),
    ]
    assert found[0].others == {"no_cuda", "bf16", "**"}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("parser.add_argument('--local-rank', type=int, required=True)", "--local-rank"),
        ("parser.add_argument('-l', '--local_rank')", "--local_rank"),
        ("@dataclass\nclass Mine:\n    local_rank: int = -1", ""),
        ("print('--local-rank')", ""),
    ],
)
def test_the_option_that_torchs_launcher_gives(tmp_path: Path, text: str, spelled: str) -> None:
    assert source(tmp_path, text).local_rank == spelled


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "x = " + "a()." * 3000 + "b"])
def test_what_is_nested_deeply_is_no_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{text}\n")
    source = read_source(tmp_path / "train.py", tmp_path)
    assert bool(source.syntax_error) != bool(source.imports)
