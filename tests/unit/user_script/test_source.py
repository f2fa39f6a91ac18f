"""What a script's source says about itself."""

from pathlib import Path

import pytest

from ftcluster.user_script.source import Source, read_source


def source(folder: Path, text: str, others: dict[str, str] | None = None) -> Source:
    for name, other in (others or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(other)
    (folder / "train.py").write_text(text)
    return read_source(folder / "train.py", folder)


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("import ipex", True),
        ("import os\nimport ipex.cpu as i", True),
        ("from ipex.cpu import runtime", True),
        ("if __name__ == '__main__':\n    import ipex", True),
        ("with open('x'):\n    import ipex", True),
        ("try:\n    import ipex\nexcept ValueError:\n    pass", True),
        ("class A:\n    import ipex", True),
        ("try:\n    import ipex\nexcept ImportError:\n    pass", False),
        ("try:\n    import ipex\nexcept (KeyError, ModuleNotFoundError):\n    pass", False),
        ("try:\n    import ipex\nexcept:\n    pass", False),
        ("try:\n    x = 1\nexcept ImportError:\n    import ipex", False),
        ("if args.ipex:\n    import ipex", False),
        ("def f():\n    import ipex", False),
        ("async def f():\n    import ipex", False),
    ],
)
def test_imports_and_whether_they_are_carried_out(tmp_path: Path, text: str, certain: bool) -> None:
    found = [one for one in source(tmp_path, text).imports if one.module == "ipex"]
    assert [one.certain for one in found] == [certain]
    line = text[: text.index("ipex" if "from" in text else "import ipex")].count("\n") + 1
    assert found[0].where == f"train.py:{line}"


def test_own_modules_are_read_and_not_counted(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "from pkg import model\nimport tools\nimport os.path",
        {
            "pkg/__init__.py": "from . import inner",
            "pkg/model.py": "from .inner import y\nfrom ..up import z",
            "pkg/inner.py": "import deep_one",
            "tools.py": "import ipex\nimport tools",
            "unused.py": "import never",
        },
    )
    assert found.modules == {"os", "deep_one", "ipex"}
    assert {one.where for one in found.imports if one.module == "ipex"} == {"tools.py:1"}


def test_a_broken_module_of_its_own_is_passed_over(tmp_path: Path) -> None:
    found = source(tmp_path, "import tools, json", {"tools.py": "this is not Python"})
    assert (found.modules, found.broken) == ({"json"}, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "train.py:1: not Python: '(' was never closed"),
        ("#!/bin/sh\necho hello\n", "train.py:2: not Python: invalid syntax"),
        ("x = '\0'", "not Python"),
    ],
)
def test_what_is_no_python(tmp_path: Path, text: str, said: str) -> None:
    assert said in source(tmp_path, text).broken


def test_a_script_in_another_encoding_than_it_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"x = '\xff'\n")
    assert "train.py" in read_source(tmp_path / "train.py", tmp_path).broken


@pytest.mark.parametrize(
    "text",
    [
        "parser.add_argument('--no_cuda', action='store_true')",
        "parser.add_argument('-n', '--no-cuda')",
        "@click.option('--no-cuda/--cuda')\ndef main(no_cuda): ...",
        "@dataclass\nclass Mine:\n    no_cuda: bool = False",
        "import fire\ndef main(no_cuda=False): ...\nfire.Fire(main)",
    ],
)
def test_flags_of_its_own(tmp_path: Path, text: str) -> None:
    assert "no_cuda" in source(tmp_path, text).own_flags


@pytest.mark.parametrize(
    "text",
    ["x = '--no_cuda'", "call(['--no_cuda'])", "def f(no_cuda): ...", "no_cuda = 1", "a.no_cuda"],
)
def test_what_defines_no_flag(tmp_path: Path, text: str) -> None:
    assert "no_cuda" not in source(tmp_path, text).own_flags


def test_flags_of_its_own_modules(tmp_path: Path) -> None:
    text = "from options import parser"
    found = source(tmp_path, text, {"options.py": "parser.add_argument('--use_ipex')"})
    assert "use_ipex" in found.own_flags


def test_arguments_of_training_arguments(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "a = transformers.Seq2SeqTrainingArguments(\n    no_cuda=True,\n    bf16=flag, **more)\n"
        "b = dict(use_ipex=True)",
    )
    assert [(one.name, one.value, one.where) for one in found.keywords] == [
        ("no_cuda", True, "train.py:2"), ("bf16", None, "train.py:3"),
    ]  # fmt: skip
    assert found.keywords[0].beside == {"no_cuda", "bf16", "**"}


def test_names_that_are_read_off_objects(tmp_path: Path) -> None:
    found = source(tmp_path, "\nif args.no_cuda: pass\nargs.use_ipex = 1\nprint(args.no_cuda)")
    assert found.attributes == {"no_cuda": "train.py:2"}
