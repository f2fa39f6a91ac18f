"""Example files that come with ftcluster: scripts for `run`, a task and a metric for `train`."""

import ast
from pathlib import Path

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.result import Result
from ftcluster.paths import SHARED_FILE, bundled, write_atomically
from ftcluster.text.table import aligned

NEXT = (
    "to write all examples: ftcluster examples --to DIR; to write only one: ftcluster examples "
    "NAME --to DIR"
)


def example_scripts() -> dict[str, Path]:
    """Return the paths of the example scripts, by name."""
    return {path.stem: path for path in sorted(bundled("examples").glob("*.py"))}


def examples(name: str = "", folder: str = "") -> Result:
    """Return the list of examples; with `name`, the text of that example.

    If `folder` is given, write the files there instead, and return their paths.

    Raises:
        UsageError: there is no such example.
        FtclusterError: a file to write exists already.
    """
    scripts = example_scripts()
    if name and name not in scripts:
        raise UsageError(f"there is no example '{name}'", f"the examples are {', '.join(scripts)}")
    chosen = {name: scripts[name]} if name else scripts
    texts = {example: path.read_text(encoding="utf-8") for example, path in chosen.items()}
    if folder:
        return _written({Path(folder, scripts[key].name): text for key, text in texts.items()})
    if name:
        lines = texts[name].rstrip("\n").split("\n")
        return Result({"example": name, "text": texts[name]}, tuple(lines))
    about = {example: (ast.get_docstring(ast.parse(text)) or "") for example, text in texts.items()}
    rows = aligned(
        [("example", "description"), *((key, _first(text)) for key, text in about.items())]
    )
    document = [{"example": example, "about": text} for example, text in about.items()]
    return Result(document, (*rows, "", NEXT))


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _written(files: dict[Path, str]) -> Result:
    if existing := [str(path) for path in files if path.exists()]:
        raise FtclusterError(
            f"files exist already: {', '.join(existing)}", "pass another folder with --to"
        )
    for path, text in files.items():
        write_atomically(path.absolute(), text, mode=SHARED_FILE)
    names = [str(path) for path in files]
    return Result({"state": "done", "files": names}, tuple(f"written: {name}" for name in names))
