"""Who else reaches this host: ports that are open for as long as verify's ranks are at work.

The control node, which is not one of the cluster, calls them meanwhile. What the firewall lets
through is seen here, with the address that it came from. Standard library only.
"""

import contextlib
import ipaddress
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PAUSE_SECONDS = 0.1


@dataclass
class Calls:
    """What came in.

    Attributes:
        seconds: how long the ports were open.
        came: at each port that could be opened, the addresses that called.
    """

    seconds: float = 0.0
    came: dict[int, list[str]] = field(default_factory=dict)


@contextlib.contextmanager
def take_calls(ports: Sequence[int]) -> Iterator[Calls]:
    """Listen at ports of all of this host's addresses; what came in is whole at the end.

    A port that is taken is left out.
    """
    calls, over, began = Calls(), threading.Event(), time.monotonic()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for port in ports:
            with contextlib.suppress(OSError):
                listener = stack.enter_context(_listen(port))
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, port)
                calls.came[port] = []
        thread = threading.Thread(target=_accept, args=(selector, calls, over), daemon=True)
        thread.start()
        try:
            yield calls
        finally:
            over.set()
            thread.join()
            calls.seconds = round(time.monotonic() - began, 2)


def _accept(selector: selectors.BaseSelector, calls: Calls, over: threading.Event) -> None:
    while not over.wait(PAUSE_SECONDS):
        for key, _ in selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            with contextlib.suppress(OSError):  # it has hung up again
                connection, caller = key.fileobj.accept()
                connection.close()
                if _plain(caller[0]) not in calls.came[key.data]:
                    calls.came[key.data].append(_plain(caller[0]))


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _plain(address: str) -> str:
    """The address as people write it: no interface, IPv4 as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)
