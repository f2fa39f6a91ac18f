"""AGENTS.md and llms.txt match the pages."""

import re

from scripts.agent_pages import agents, llms, read_pages
from tests.programs import ROOT

PAGES = read_pages(ROOT)


def test_they_are_up_to_date() -> None:
    for name, text in {"AGENTS.md": agents(PAGES), "llms.txt": llms(PAGES)}.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "python3 scripts/agent_pages.py"


def test_llms_txt_has_its_form_and_each_page() -> None:
    # llmstxt.org: a title, a quote, sections with lists of links
    title, quote, *rest = llms(PAGES).strip().split("\n\n")
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"> \S.*", quote)
    links = []
    for head, items in zip(rest[::2], rest[1::2], strict=True):
        assert re.fullmatch(r"## \w+", head)
        for item in items.splitlines():
            found = re.fullmatch(r"- \[[^\]]+\]\(([^)]+)\)(: \S.*)?", item)
            assert found, item
            links.append(found[1])
    assert sorted(links) == sorted(PAGES.keys() - {"docs/index.md"})
