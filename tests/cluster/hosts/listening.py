"""The TCP ports that hosts open to others during a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.cluster.control import Control

CLOSED = {*range(29500, 30000), *range(32768, 61000)}  # ports that the firewall closes
SOCKETS = "ss -Hltn | awk '{print $4}'"
WATCH = """
rm -f /run/stop /run/heard
systemd-run -q --unit heard sh -c '
  while [ ! -e /run/stop ]; do ss -Hltn; sleep 0.2; done | awk "{print \\$4}" | sort -u > /run/new
  mv /run/new /run/heard
'
"""
STOP = "touch /run/stop; while [ ! -e /run/heard ]; do sleep 0.1; done; cat /run/heard"
CLEAR = "rm -f /run/stop /run/heard"


@contextmanager
def opened_ports(control: Control, hosts: Sequence[str]) -> Iterator[dict[str, set[int]]]:
    """Yield the open ports by host; the result is complete at the end of the context."""
    before = {name: ports(control.shell(name, SOCKETS)) for name in hosts}
    opened: dict[str, set[int]] = {}
    with control.changed(dict.fromkeys(hosts, (WATCH, CLEAR))):
        try:
            yield opened
        finally:
            for name in hosts:
                opened[name] = ports(control.shell(name, STOP)) - before[name]


def ports(sockets: str) -> set[int]:
    """Return the ports of the sockets that other hosts can reach."""
    return {int(s.rpartition(":")[2]) for s in sockets.split() if not s.startswith("127.")}
