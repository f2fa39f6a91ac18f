"""Read host facts from a control node's cluster.json, or from output of `ftcluster plan --json`."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import NAME, is_address
from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.cluster.price import read_price
from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import InputError, raise_together
from ftcluster.operations.plan.common_hosts import NAMED, common_hosts, with_sockets
from ftcluster_common.given_files import GivenFileError, read_json

HINT = (
    "pass a file with the output of `ftcluster plan --json`, cluster.json of another control node, "
    f"or a kind of host: {NAMED}. 4xNAME means four hosts: 4x2x8480+ means four hosts with two "
    "sockets each"
)


def facts_of(file: str | None) -> Cluster:
    """Return the cluster that a facts file or the name of a kind of host describes.

    If `file` is None, return the cluster that was set up last.

    Raises:
        FtclusterError: there is no cluster, or the file cannot be read or is incomplete.
    """
    if not file:
        return recall()
    common = None if Path(file).exists() else common_hosts(file)
    if not common and not Path(file).exists() and (meant := with_sockets(file)):
        raise InputError(f"{file} does not state how many sockets a host has", f"write {meant}")
    return Cluster(inventories=(), facts=common or read_facts(Path(file).absolute()))


def read_facts(path: Path) -> ClusterFacts:
    """Return the hosts that a JSON file describes, in its field `facts` or as its whole content.

    Raises:
        InputError: the file cannot be read, or hosts are incomplete; the message lists the missing
            facts.
    """
    try:
        document = read_json(path)
    except GivenFileError as error:
        raise InputError(str(error), HINT) from error
    hosts = document.get("facts", document) if isinstance(document, dict) else None
    hosts = hosts.get("hosts") if isinstance(hosts, dict) else None
    if not isinstance(hosts, list) or not hosts:
        raise InputError(f"{path} contains no hosts", HINT)
    problems = [
        f"host {number}: {problem}"
        for number, host in enumerate(hosts, start=1)
        for problem in _problems(host)
    ]
    names = [host.get("name") for host in hosts if isinstance(host, dict)]
    twice = sorted({str(name) for name in names if name and names.count(name) > 1})
    problems += [
        f"several hosts are called {name}; give each host a different name" for name in twice
    ]
    raise_together(problems, f"{path} does not contain valid facts about hosts", HINT)
    return ClusterFacts.from_dict({"hosts": hosts})


def _problems(host: Any) -> Iterator[str]:
    """Yield the problems of a host in a facts file: missing and invalid facts."""
    if not isinstance(host, dict):
        yield f"{host!r:.80} is not a mapping"
        return
    name = host.get("name")
    if not (isinstance(name, str) and (NAME.fullmatch(name) or is_address(name))):
        yield f"{name!r:.80} is not a valid host name"  # hostfiles and manifests contain the name
        return
    missing = [
        spec.name for spec in fields(HostFacts) if spec.default is MISSING and spec.name not in host
    ]
    if missing:
        yield f"{name}: missing facts: {', '.join(missing)}"
        return
    try:
        facts = HostFacts.from_dict(host)
        price = facts.price_per_hour
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        yield f"{host['name']}: {error}"
        return
    try:
        if price:
            read_price(price)
    except (AttributeError, ValueError):
        yield f'{facts.name}: {price!r} is not a price; write price_per_hour as in "4.08 USD"'
