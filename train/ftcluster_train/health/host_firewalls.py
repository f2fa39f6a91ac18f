"""How hosts whose firewall is managed by a known program let the other hosts in. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftcluster_common.launch import Host

FIREWALLD, UFW = "firewalld", "ufw"


@dataclass(frozen=True)
class HostFirewall:
    """What manages the firewall of a host.

    Attributes:
        program: FIREWALLD or UFW.
        ports: those of training on this host, numbers and ranges such as "29500-29999".
    """

    program: str
    ports: tuple[str, ...]

    def opening(self, addresses: Sequence[str]) -> str:
        """The shell command, for the host, that lets connections from these addresses in.

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


def advice(
    hosts: Iterable[Host], others: Sequence[Host], firewalls: Mapping[str, HostFirewall]
) -> list[str]:
    """What to run on those of the hosts with such a firewall, so that they let others in."""
    return [
        f"on {host.name}, whose firewall {firewall.program} manages: "
        + firewall.opening([other.address for other in others if other != host])
        for host in hosts
        if (firewall := firewalls.get(host.name))
    ]
