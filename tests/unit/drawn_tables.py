"""Tables of states in docstrings: a row for each state, a column for each event."""


def drawn_table(docstring: str) -> dict[tuple[str, str], str]:
    """Return the next state of each cell, by state and event; cells with "-" are skipped.

    A heading begins with the word `state`; its rows follow up to an empty line.
    """
    cells: dict[tuple[str, str], str] = {}
    events: list[str] = []
    for line in docstring.splitlines():
        name, _, rest = line.strip().partition("|")
        if name.strip() == "state":
            events = rest.replace("|", " ").split()
        elif not rest:
            events = []
        elif events:
            row = zip(events, rest.replace("|", " ").split(), strict=True)
            cells |= {(name.strip(), event): then for event, then in row if then != "-"}
    return cells
