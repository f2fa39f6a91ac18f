"""The elements of a page, as a browser's parser would see them."""

from html.parser import HTMLParser


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))


def elements(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each element of a page with the names of its attributes."""
    parser = _Elements()
    parser.feed(page)
    parser.close()
    return parser.seen
