"""Tables of states that docstrings draw: a row a state, a column an event."""


def drawn_table(docstring: str) -> dict[tuple[str, str], str]:
    """Return the state that each drawn cell leads to, by state and event; "-" cells are left out.

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
