"""Writes AGENTS.md and llms.txt from the pages, for programs that read this repository.

    python3 scripts/agent_pages.py            writes both files
    python3 scripts/agent_pages.py --check    writes nothing; exit code 1 if a file is outdated

AGENTS.md (agents.md) contains the information that a coding agent needs to use and to change
ftcluster: sections of docs/cli.md and CONTRIBUTING.md. llms.txt (llmstxt.org) lists all pages.
"""

import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "<!-- Written by scripts/agent_pages.py from docs/cli.md and CONTRIBUTING.md. -->"
SECTIONS = {
    "docs/cli.md": ("Commands", "Output and exit codes", "Where files are"),
    "CONTRIBUTING.md": ("Where things are", "Where a change goes", "House rules"),
}
TESTS = """## Run the tests

    ./test unit       # seconds; further arguments go to pytest
    ./test lint       # ruff, mypy --strict, yamllint, ansible-lint
    ./test            # all layers, in about 10 minutes

[How they are layered](CONTRIBUTING.md#how-the-tests-are-layered); after a change to a page or a
sentence, [what to renew](CONTRIBUTING.md#files-that-are-generated).
"""
MOST = 200  # maximum characters of a line's description


def section(text: str, title: str) -> str:
    """Return a section of the second level of a page, with its heading.

    Raises:
        SystemExit: the page has no such section.

    >>> section("# A\\n\\n## B\\n\\nb\\n\\n## C\\n", "B")
    '## B\\n\\nb'
    """
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise SystemExit(f"error: no section '{title}'")
    return str(found[0]).strip()


def title_of(text: str) -> str:
    """Return the heading of a page."""
    return str(re.findall(r"^# (.+)$", text, re.MULTILINE)[0]).replace("`", "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph, without links and marks; "" for none.

    >>> first_sentence("# A\\n\\nIt does **b** ([c](d.md)), as in 2.1. More.\\n")
    'It does b (c), as in 2.1.'
    """
    body = text.partition("\n# ")[2] if not text.startswith("# ") else text
    paragraphs = [part for part in re.split(r"\n\s*\n", body)[1:] if re.match(r"[\w`*]", part)]
    if not paragraphs:
        return ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*|`", r"\1", " ".join(paragraphs[0].split()))
    sentence = re.match(r".+?[.:](?= |$)", plain)
    return (sentence[0] if sentence else plain)[:MOST].rstrip(":")


def from_root(text: str, page: str) -> str:
    """Return a part of a page with its links changed so that they work in the top folder.

    >>> from_root("[a](#b), [c](d.md#e), [f](../g.md), [h](https://i)", "docs/cli.md")
    '[a](docs/cli.md#b), [c](docs/d.md#e), [f](g.md), [h](https://i)'
    """

    def moved(link: re.Match[str]) -> str:
        name, hash_sign, anchor = link[1].partition("#")
        path = posixpath.join(posixpath.dirname(page), name) if name else page
        return f"]({posixpath.normpath(path)}{hash_sign}{anchor})"

    return re.sub(r"\]\((?!https?:)([^)\s]+)\)", moved, text)


def agents(pages: dict[str, str]) -> str:
    """Return the text of AGENTS.md, from the texts of pages by name."""
    parts = [
        f"{MARK}\n\n# ftcluster for coding agents",
        f"{first_sentence(pages['README.md'])} With `--json` each command prints a JSON document; "
        "`ftcluster COMMAND --help` has all options. Pages by subject: [llms.txt](llms.txt).",
    ]
    for page, titles in SECTIONS.items():
        texts = (section(pages[page], title) for title in titles)
        parts += [from_root(text, page) for text in texts]
    parts.insert(-1, TESTS.strip())
    return "\n\n".join(parts) + "\n"


def llms(pages: dict[str, str]) -> str:
    """Return the text of llms.txt, from the texts of pages by name."""
    docs = [name for name in pages if name.startswith("docs/") and name != "docs/index.md"]
    roles = [name for name in pages if name.startswith("roles/")]
    others = [name for name in pages if name not in (*docs, *roles, "docs/index.md")]
    parts = [
        f"# {title_of(pages['README.md'])}",
        f"> {first_sentence(pages['README.md'])}",
        "\n".join(["## Guides", "", *_lines(pages, docs)]),
        "\n".join(["## Project", "", *_lines(pages, others)]),
        "\n".join(["## Optional", "", *_lines(pages, roles)]),
    ]
    return "\n\n".join(parts) + "\n"


def _lines(pages: dict[str, str], names: Iterable[str]) -> list[str]:
    lines = []
    for name in sorted(names):
        about = first_sentence(pages[name])
        lines.append(f"- [{title_of(pages[name])}]({name})" + (f": {about}" if about else ""))
    return lines


def read_pages(root: Path) -> dict[str, str]:
    """Return the texts of the pages by name."""
    names = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md"]
    found = [*map(root.joinpath, names), *root.glob("docs/*.md"), *root.glob("roles/*/README.md")]
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted(found)}


def main() -> int:
    """Run the program and return the exit code."""
    pages, differ = read_pages(ROOT), []
    for name, text in {"AGENTS.md": agents(pages), "llms.txt": llms(pages)}.items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differ.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    if differ and "--check" in sys.argv[1:]:
        print(f"error: {', '.join(differ)}: run python3 scripts/agent_pages.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
