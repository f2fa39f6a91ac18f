"""Short descriptions of hosts."""

import re
from collections.abc import Sequence

from ftcluster.text.plural import counted


def short_names(names: Sequence[str]) -> str:
    """Join names of hosts; names with consecutive numbers become a range.

    >>> short_names(["head", "node1", "node2", "node3", "node7"])
    'head, node1-node3, node7'
    >>> short_names(["n08.dc2", "n09.dc2", "n10.dc2", "n11.dc3"])
    'n08.dc2-n10.dc2, n11.dc3'
    >>> short_names(["10.0.0.1", "10.0.0.2"]), short_names(["b", "a"]), short_names([])
    ('10.0.0.1-10.0.0.2', 'b, a', '')
    """
    runs: list[list[str]] = []
    where = -1  # position of the increasing number in the names of the current range
    for name in names:
        place = _follows(runs[-1][-1], name) if runs else -1
        if place >= 0 and (len(runs[-1]) == 1 or place == where):
            runs[-1].append(name)
            where = place
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def with_host(host: str, message: str) -> str:
    """Put the host before a message, unless the message already begins with the host.

    >>> with_host("xeon3", "the disk is full"), with_host("xeon3", "xeon3 (10.0.0.3) was lost")
    ('xeon3: the disk is full', 'xeon3 (10.0.0.3) was lost')
    """
    named = re.match(rf"{re.escape(host)}(?![\w-]|\.\w)", message)
    return message if named else f"{host}: {message}"


def _follows(name: str, following: str) -> int:
    """Return the position of the number that increases by 1 in `following`, or -1."""
    for match in re.finditer(r"\d+", name):
        number = str(int(match[0]) + 1).zfill(len(match[0]))
        if name[: match.start()] + number + name[match.end() :] == following:
            return match.start()
    return -1


def described(hosts: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Count the hosts of each CPU model and core count, and describe each group.

    >>> described([("Xeon 8488C", 64), ("Xeon 8488C", 64), ("Xeon 6248", 40)])
    ('2 x Xeon 8488C, 64 cores', '1 x Xeon 6248, 40 cores')
    """
    return tuple(
        f"{hosts.count(kind)} x {kind[0].replace('(R)', '')}, {counted(kind[1], 'core')}"
        for kind in dict.fromkeys(hosts)
    )
