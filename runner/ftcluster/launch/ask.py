"""Check before `ftcluster run` that the hosts have the script, and read their stack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ftcluster.ansible.answers import SCRIPT_FOUND, STACK_DESCRIBED, Answer, Answered
from ftcluster.ansible.playbooks import Ask
from ftcluster.errors import FtclusterError
from ftcluster.launch.run_hosts import RunHosts, off_hint
from ftcluster.launch.runs import SHORT_SECONDS, play


@dataclass(frozen=True)
class HostStack:
    """The stack of a cluster's hosts.

    Attributes:
        name: name of the stack's folder.
        target: the platform of all hosts, which packages must be compatible with.
        packages: versions of the stack's packages by normalized name.
        extras: requirement lines for the extras of each package, by the package's normalized name.
    """

    name: str
    target: Target
    packages: dict[str, str]
    extras: dict[str, tuple[str, ...]]


def find_script(run_hosts: RunHosts, look: Sequence[str]) -> list[str]:
    """Check that the hosts have a script. Return the hosts that do not respond.

    Args:
        look: path of the script, or -m and the name of a module.

    Raises:
        FtclusterError: a host does not have the script.
    """
    answered = _ask(run_hosts, look, False, SCRIPT_FOUND)
    return [host for host in run_hosts.hosts if host not in answered]


def read_stack(run_hosts: RunHosts) -> HostStack:
    """Return the stack of the hosts.

    Raises:
        FtclusterError: a host does not respond, a response is not valid, or the hosts have
            different stacks.
    """
    described = _ask(run_hosts, (), True, STACK_DESCRIBED)
    silent = [host for host in run_hosts.hosts if host not in described]
    if silent:
        raise FtclusterError(
            f"{', '.join(silent)} does not answer", off_hint(silent, run_hosts.head)
        )
    try:
        return common_stack({host: described[host] for host in run_hosts.hosts})
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise FtclusterError(
            f"a host's description of its stack is not valid: {error!r}", "run ftcluster setup"
        ) from error


def common_stack(described: dict[str, dict[str, Any]]) -> HostStack:
    """Return the stack that all hosts have.

    Args:
        described: each host's description of its stack by host name, the head first.

    Raises:
        FtclusterError: the hosts have different stacks.
        LookupError, TypeError, AttributeError, ValueError: a description has the wrong format.
    """
    for key in ("stack", "python", "machine"):
        values = {host: description[key] for host, description in described.items()}
        if len(set(values.values())) > 1:
            raise FtclusterError(
                f"packages cannot be chosen for hosts that differ in {key}: "
                + ", ".join(f"{host} has {value}" for host, value in values.items()),
                "set the hosts up together, or use --nodes to choose hosts that are alike",
            )
    head, *_ = described.values()
    glibc = min((description["glibc"] for description in described.values()), key=Version)
    packages = {
        str(canonicalize_name(package["name"], validate=True)): package
        for package in head["packages"]
    }
    return HostStack(
        head["stack"],
        Target(head["python"], glibc, head["machine"]),
        {name: str(Version(package["version"])) for name, package in packages.items()},
        {
            name: lines
            for name, package in packages.items()
            if (lines := tuple(filter(_is_requirement, package["extras"])))
        },
    )


def _is_requirement(line: str) -> bool:
    try:
        Requirement(line)
    except InvalidRequirement:
        return False
    return "\n" not in line


def _ask(
    run_hosts: RunHosts, look: Sequence[str], stack: bool, answer: Answer[Answered]
) -> dict[str, Answered]:
    playbook = Ask(run_hosts.at(), {"look": list(look)}, stack)
    return play(playbook, run_hosts, SHORT_SECONDS, answer, unreachable=True)
