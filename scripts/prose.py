"""Checks the wording of docstrings, comments, messages and pages: `scripts/lint scripts/prose`.

    scripts/prose.py [PATH ...]    prints each problem with its file and line; exit code 1 if any

Two rules are about docstrings. The first word is a verb or belongs to a noun phrase: a docstring
that opens with "What", "Those" or "Whether" has no main clause, and its reader has to guess the
noun. The text behind `name:` in a list of arguments or attributes is a noun phrase for the same
reason. The third rule is a list of expressions for which the field has a better one.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = ("runner", "common", "train", "plugins", "roles")
CODE = (*PRODUCT, "scripts", "bench", "tests", "docs")
PAGES = ("*.md", "docs/*.md", "roles/*/README.md", "bench/**/*.md", "examples/**/*.md")
EXCLUDED = {"CHANGELOG.md"}  # its older entries are history
OPENINGS = frozenset({
    "as", "how", "it", "its", "of", "their", "they", "those", "that", "these", "there", "what",
    "when", "where", "whether", "which", "who", "whose", "why",
})  # fmt: skip
WEAK_STARTS = frozenset({
    "as", "at", "by", "for", "from", "how", "in", "it", "its", "of", "on", "that", "their", "those",
    "to", "what", "where", "which", "whose", "with",
})  # fmt: skip
# an expression, and its replacement
WORDS = {
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\b(go|goes|went|going) on\b": "continue, resume",
    r"\b(tell|tells) (what|which|whether|how|where|why|that|in|of)\b": "report, print, show",
    r"\bput aside\b": "skip, ignore",
    r"\banew\b": "again, re-read, recomputed",
    r"\b(is|are|was|be) learned\b": "contributes to the loss",
    r"\blearned (tokens?|texts?)\b": "target tokens",
    r"\bas (it|they) comes?\b": "with the default settings",
    r"\bmatrix products?\b": "matrix multiplication",
    r"\bproducts of (matrices|a matrix)\b": "matrix multiplications",
    r"\bthe (same|one|ones|those) of\b": "repeat the noun",
    r"\bthat of (it|them)\b": "repeat the noun",
    r"\bas (it|they|others) (has|have) (it|them)\b": "say what is meant",
}
ENTRY = re.compile(r"^ {4,}\*{0,2}`?\w[\w.]*`?(, \*{0,2}`?\w[\w.]*`?)*: (?P<word>\w+)")
SECTIONS = ("Args:", "Attributes:")


class Problem(NamedTuple):
    """A place in a file whose wording breaks a rule."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        """Return the problem as a line for a terminal."""
        return f"{self.path}:{self.line}: {self.text}"


def docstring_problems(docstring: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each opening that is no sentence or noun phrase.

    Args:
        docstring: text without the quotes, indented as in the file except for its first line.
        line: number of its first line.

    >>> text = "What is read.\\n\\n    Args:\\n        path: of the file.\\n    "
    >>> [number for number, _ in docstring_problems(text, 1)]
    [1, 4]
    """
    first = re.match(r"\W*([A-Za-z]+)", docstring)
    if first and first[1][0].isupper() and first[1].lower() in OPENINGS:
        yield line, f"a docstring opens with '{first[1]}': use a verb or a noun phrase"
    listed = False
    for number, text in enumerate(docstring.splitlines(), line):
        if text.strip().endswith(":") and text.strip()[0].isupper():
            listed = text.strip() in SECTIONS
        entry = ENTRY.match(text)
        if listed and entry and entry["word"] in WEAK_STARTS:
            yield number, f"'{text.strip()[:40]}...' begins with '{entry['word']}': say the noun"


def word_problems(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each expression in WORDS."""
    for number, content in enumerate(text.splitlines(), line):
        for pattern, better in WORDS.items():
            match = re.search(pattern, content, re.IGNORECASE)
            if match:
                yield number, f"'{match[0]}': write {better}"


def python_problems(source: str, messages: bool) -> Iterator[tuple[int, str]]:
    """Yield the problems of a Python file's docstrings and comments.

    Args:
        messages: True if other texts of the file are read too, because users see them.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            constant = node.body[0]
            text = str(ast.get_docstring(node, clean=False))
            yield from docstring_problems(text, constant.lineno)
            yield from word_problems(text, constant.lineno)
        elif messages and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from word_problems(node.value.replace("\n", " "), node.lineno)
    lines = iter(source.splitlines(keepends=True))
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT:
            yield from word_problems(token.string, token.start[0])


def page_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the problems of a page's prose; code in it is not read."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    prose = re.sub(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", blank, text, flags=re.MULTILINE | re.DOTALL)
    yield from word_problems(prose, 1)


def comment_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the problems of comments in C and in YAML."""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(#|/\*|//|^ \*).*", line)
        if comment:
            yield from word_problems(comment[0], number)


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below the paths that can have prose."""
    for path in paths:
        found = path.rglob("*") if path.is_dir() else (path,)
        yield from (file for file in sorted(found) if file.suffix in (".py", ".c", ".h", ".yml"))


def is_product(path: Path) -> bool:
    """Return True if users see the texts of a file."""
    absolute = path.absolute()
    return absolute.is_relative_to(ROOT) and absolute.relative_to(ROOT).parts[0] in PRODUCT


def problems_of(path: Path) -> list[Problem]:
    """Return the problems of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = set(python_problems(text, messages=is_product(path)))
    elif path.suffix == ".md":
        found = set(page_problems(text))
    else:
        found = set(comment_problems(text))
    return [Problem(path, *problem) for problem in sorted(found)]


def main(arguments: list[str]) -> int:
    """Print the problems of the named files and folders, or of the whole repository."""
    if arguments:
        named = [Path(argument) for argument in arguments]
        files = [*files_of(named), *(path for path in named if path.suffix == ".md")]
    else:
        pages = (path for pattern in PAGES for path in sorted(ROOT.glob(pattern)))
        files = [*files_of(ROOT / folder for folder in CODE)]
        files += [path for path in pages if path.name not in EXCLUDED]
    hidden = [path for path in files if any(part.startswith(".") for part in path.parts[-4:-1])]
    problems = [problem for path in files if path not in hidden for problem in problems_of(path)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
