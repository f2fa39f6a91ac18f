"""Settings of Sphinx for `scripts/docs`.

The source folder is the whole repository, so that links between pages are the same in a clone and
on the site. A link to a file that is not a page gives the file.
"""

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project = "ftcluster"
author = "The ftcluster authors"
version = release = runpy.run_path(str(ROOT / "hatch_version.py"))["version"](ROOT)

root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "bench/*.md",
    "roles/*/README.md",
    "tests/testbed/README.md",
    "tests/unit/planning/golden/README.md",
]
exclude_patterns = [".*", "build", "dist", "AGENTS.md"]

extensions = ["myst_parser"]
myst_heading_anchors = 4
# notes for maintainers, which the toctree of bench/README.md has
include_patterns += ["bench/notes/*.md", "tests/security.md", "tests/engine/guards.md"]
highlight_language = "text"
nitpicky = True

html_theme = "furo"
html_title = f"ftcluster {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_site"]  # the site's first page leads to docs/
html_show_copyright = False
html_copy_source = False


def add_other_pages(_app: Any, docname: str, text: list[str]) -> None:
    """Add the pages of docs/ that the index does not name to its end."""
    if docname == root_doc:
        named = set(re.findall(r"^([\w-]+)$", text[0], re.MULTILINE))
        others = sorted({path.stem for path in (ROOT / "docs").glob("*.md")} - named - {"index"})
        text[0] += "\n".join(["```{toctree}", ":hidden:", ":caption: More", "", *others, "```", ""])


def setup(app: Any) -> None:
    """Register the functions of this module with Sphinx."""
    app.connect("source-read", add_other_pages)
