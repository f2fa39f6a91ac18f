"""Detection of hosts that reach this host while verify's ranks run, and advice for firewalls.

The control node, which is not a host of the cluster, connects to the ports meanwhile. Connections
that the firewall lets through appear here with their source address. Standard library only.
"""

import contextlib
import ipaddress
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ftcluster_common.protocol.launch import Host

FIREWALLD, UFW = "firewalld", "ufw"
POLL_SECONDS = 0.1
BACKLOG = 4096  # connections that wait; net.core.somaxconn limits this
ADDRESSES = 256  # most addresses recorded for a port


@dataclass(frozen=True)
class HostFirewall:
    """The firewall program of a host.

    Attributes:
        program: FIREWALLD or UFW.
        ports: ports of training on this host, numbers and ranges such as "29500-29999".
    """

    program: str
    ports: tuple[str, ...]

    def opening(self, addresses: Sequence[str]) -> str:
        """Return the shell command that lets connections from these addresses into the host.

        >>> HostFirewall(UFW, ("29500-29999", "40000")).opening(["10.0.0.2"])
        'sudo ufw allow proto tcp from 10.0.0.2 to any port 29500:29999,40000'
        >>> HostFirewall(FIREWALLD, ("29500-29999",)).opening(["10.0.0.2"])[:44]
        'sudo firewall-cmd --permanent --zone=trusted'
        """
        if self.program == UFW:
            ports = ",".join(self.ports).replace("-", ":")
            return " && ".join(
                f"sudo ufw allow proto tcp from {address} to any port {ports}"
                for address in addresses
            )
        sources = " ".join(f"--add-source={address}" for address in addresses)
        return (
            f"sudo firewall-cmd --permanent --zone=trusted {sources} && sudo firewall-cmd --reload"
        )


def firewall_advice(
    hosts: Iterable[Host], others: Sequence[Host], firewalls: Mapping[str, HostFirewall]
) -> list[str]:
    """Return the commands that make hosts with a known firewall accept the other hosts."""
    return [
        f"on {host.name}, whose firewall {firewall.program} manages: "
        + firewall.opening([other.address for other in others if other != host])
        for host in hosts
        if (firewall := firewalls.get(host.name))
    ]


@dataclass
class IncomingConnections:
    """Connections to the open ports.

    Attributes:
        seconds: time that the ports were open.
        came: source addresses of the connections, for each port that could be opened.
    """

    seconds: float = 0.0
    came: dict[int, list[str]] = field(default_factory=dict)


@contextlib.contextmanager
def accept_connections(ports: Sequence[int]) -> Iterator[IncomingConnections]:
    """Listen on ports of all addresses of this host; the yielded result is complete at the end."""
    connections, stop, began = IncomingConnections(), threading.Event(), time.monotonic()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for port in ports:
            with contextlib.suppress(OSError):  # another program uses the port
                listener = stack.enter_context(_listen(port))
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, port)
                connections.came[port] = []
        thread = threading.Thread(target=_accept, args=(selector, connections, stop), daemon=True)
        thread.start()
        try:
            yield connections
        finally:
            stop.set()
            thread.join()
            connections.seconds = round(time.monotonic() - began, 2)


def _accept(
    selector: selectors.BaseSelector, connections: IncomingConnections, stop: threading.Event
) -> None:
    while not stop.wait(POLL_SECONDS):
        for key, _ in selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            _accept_all(key.fileobj, connections.came[key.data])


def _accept_all(listener: socket.socket, came: list[str]) -> None:
    """Accept all waiting connections: others may connect faster than the ports are polled."""
    with contextlib.suppress(OSError):  # no connection waits, or the peer has closed it
        for _ in range(BACKLOG):
            connection, peer = listener.accept()
            connection.close()
            address = _plain(peer[0])
            if address not in came and len(came) < ADDRESSES:
                came.append(address)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    return socket.create_server(("", port), backlog=BACKLOG)


def _plain(address: str) -> str:
    """Return an address without the interface, and an IPv4-mapped address as IPv4."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
