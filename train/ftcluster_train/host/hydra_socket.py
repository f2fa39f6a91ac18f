"""The listening socket of Hydra's proxy, which its ranks inherit. Standard library only.

The proxy listens at all addresses of its host for proxies of other hosts, whatever -iface says
(seen with Intel MPI 2021.18). Where there are no other hosts, only this one may reach it.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = b"lo"
FIRST = 3  # after standard input, output and error


def close_inherited_listeners(alone: bool) -> None:
    """Close the listening sockets that this process has inherited.

    Args:
        alone: whether all ranks are on this host, so that the sockets are to be reached from here
            only. An ordinary user may do so since Linux 5.7; before, they stay as they are.
    """
    for listener in _listeners():
        with listener:
            if alone:
                with contextlib.suppress(OSError):
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOOPBACK)


def _listeners() -> Iterator[socket.socket]:
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    for number in sorted(number for number in numbers if number >= FIRST):
        try:
            found = socket.socket(fileno=number)
        except OSError:  # no socket, or closed by now
            continue
        if (
            found.family in (socket.AF_INET, socket.AF_INET6)
            and found.type == socket.SOCK_STREAM
            and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            yield found
        else:
            found.detach()
