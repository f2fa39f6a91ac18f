"""`ftcluster setup [INVENTORY]`: all stages of setting a cluster up."""

import argparse
import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcluster.cluster import Cluster, recall, remember
from ftcluster.errors import FtclusterError, Interrupted, UsageError
from ftcluster.facts import ClusterFacts, HostFacts
from ftcluster.interrupts import Interrupts
from ftcluster.inventory import INVENTORY_OPTIONS, Inventory, read_inventory
from ftcluster.paths import bundled
from ftcluster.playbooks import TaskEvent, run_playbook
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View, make_view
from ftcluster.progress.words import duration

# ansible-playbook's own; they go through unchanged
WITH_VALUE = (
    "--limit", "--tags", "--skip-tags", "--extra-vars", "--forks", "--user", "--private-key",
    "--become-password-file", "--connection-password-file", "--vault-password-file", "--vault-id",
)  # fmt: skip
WITHOUT_VALUE = ("--check", "--diff")
TIME_LIMIT_SECONDS = 3600
SHORT = {"--limit": "-l", "--tags": "-t", "--extra-vars": "-e", "--user": "-u"}


@dataclass(frozen=True)
class SetupResult:
    """What a finished setup knows.

    Attributes:
        inventory: the hosts.
        progress: the counts of each host.
        seconds: how long it took.
    """

    inventory: Inventory
    progress: SetupProgress
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The result of `--json`."""
        return {
            "state": "done",
            "inventory": str(self.inventory.path),
            "head": self.inventory.head,
            "hosts": {
                name: {"ok": host.ok + host.changed, "changed": host.changed}
                for name, host in self.progress.hosts.items()
            },
            "notices": self.progress.notices,
            "seconds": round(self.seconds, 1),
        }


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "setup",
        help="make a cluster of the hosts of an inventory",
        description="Makes a cluster of the hosts of an inventory: preflight, system, stack, "
        "verify. A second run changes nothing.",
        usage="ftcluster setup [INVENTORY] [options]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="INVENTORY",
        help="any Ansible inventory, or 'localhost'; left out, the cluster that was set up last, "
        "else this machine",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line a task and host")
    ansible = parser.add_argument_group("passed on to ansible-playbook")
    for name in WITH_VALUE:
        names = [SHORT[name], name] if name in SHORT else [name]
        ansible.add_argument(*names, action="append", default=[], metavar="X", dest=name)
    for name in WITHOUT_VALUE:
        ansible.add_argument(name, action="store_true", dest=name)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    if len(options.words) > 1:
        raise UsageError(f"one inventory at a time, not {', '.join(options.words)}")
    inventory = find_inventory(*options.words)
    result = setup(inventory, passed_on(vars(options)), make_view(options.verbose))
    if options.json:
        print(json.dumps(result.to_dict()))
        return 0
    changed = sum(host.changed for host in result.progress.hosts.values())
    count = len(result.progress.hosts)
    hosts, changes = f"{count} host{'s' * (count != 1)}", f"{changed} change{'s' * (changed != 1)}"
    if vars(options)["--check"]:
        print(f"{hosts} checked, {changes} to make, {duration(result.seconds)}")
    else:
        print(f"{hosts} ready, {changes}, {duration(result.seconds)}")
    return 0


def passed_on(options: dict[str, Any]) -> tuple[str, ...]:
    """The arguments of ansible-playbook among the options, as the user gave them."""
    found: list[str] = []
    for name in WITH_VALUE:
        for value in options.get(name, []):
            found += [name, value]
    found += [name for name in WITHOUT_VALUE if options.get(name)]
    return tuple(found)


def find_inventory(given: str | None = None) -> Path:
    """The inventory that the user means."""
    if given is None:
        try:
            return recall().inventory
        except FtclusterError:
            return bundled("inventory") / "localhost.ini"
    path = Path(given)
    ours = bundled("inventory") / f"{path.stem}.ini"
    if not path.exists() and given == "localhost" and ours.exists():
        return ours
    return path


def setup(path: Path, options: tuple[str, ...], view: View) -> SetupResult:
    """Run the playbook `setup` and remember the cluster.

    Args:
        path: the inventory.
        options: arguments of ansible-playbook.
        view: where the progress is shown.

    Raises:
        FtclusterError: a host failed or does not answer; names each with its reason.
        Interrupted: the user stopped it.
    """
    for_inventory = [
        part
        for name, value in pairwise(options)
        if name in INVENTORY_OPTIONS
        for part in (name, value)
    ]
    inventory = read_inventory(path, for_inventory)
    progress = SetupProgress()
    facts: dict[str, HostFacts] = {}
    began = time.monotonic()

    def on_event(event: TaskEvent) -> None:
        found = event.result.get("ansible_facts", {}).get("preflight_facts")
        if found:
            facts[event.host] = HostFacts.from_dict(found)
        progress.add(event)
        view.setup_event(progress, event)

    with Interrupts() as interrupts:
        outcome = run_playbook(
            "ftcluster.cluster.setup",
            inventory.path,
            {},
            on_event,
            options=options,
            on_tick=view.tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=TIME_LIMIT_SECONDS,
        )
    progress.finished = outcome.state == "done"
    view.close()
    if outcome.state == "stopped":
        raise Interrupted("stopped: setup is not finished; run it again and it goes on")
    if outcome.state == "timeout":
        where = ", ".join(f"{name}: {host.task}" for name, host in progress.hosts.items())
        raise FtclusterError(f"setup was given up after {TIME_LIMIT_SECONDS} s, at {where}")
    failed = {name: host for name, host in progress.hosts.items() if host.failed}
    if failed:
        words = [f"{name}: {host.task}: {host.failed}" for name, host in failed.items()]
        lines = "\n".join(words).replace("\n", "\n  ")
        count = f"{len(failed)} of {len(inventory.hosts)} hosts"
        raise FtclusterError(f"setup failed on {count}\n  {lines}", _advice(progress))
    if outcome.state != "done":
        raise FtclusterError(f"setup failed: ansible said\n{outcome.output.strip()}")
    known = tuple(facts[name] for name in inventory.hosts if name in facts)
    if "--check" not in options and len(known) == len(inventory.hosts):
        remember(Cluster(inventory=inventory.path, facts=ClusterFacts(hosts=known)))
    return SetupResult(inventory, progress, time.monotonic() - began)


def _advice(progress: SetupProgress) -> str:
    failed = [host for host in progress.hosts.values() if host.failed]
    if all(host.unreachable for host in failed):
        return "see that it is on and that ssh reaches it, then run setup again; it goes on"
    if any(host.changed for host in progress.hosts.values()):
        return "mend this and run setup again; it goes on where it stopped"
    return "nothing was changed; mend this and run setup again"
