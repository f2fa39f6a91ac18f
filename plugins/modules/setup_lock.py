#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Allows one setup at a time on a host; the action plugin of the same name adds the requester."""

from __future__ import annotations

DOCUMENTATION = r"""
module: setup_lock
short_description: Allows one setup at a time on a host
description:
  - Writes the owner of the running setup into C(<prefix>/.setup). A second setup fails and names
    the first.
  - The lock of a killed setup can be taken by the next setup from the same control node; and by
    other control nodes after O(lease), after a reboot of the host, or with O(take_over).
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.prefix
  - ftcluster.cluster.options.from_action
options:
  state:
    description: V(released) removes the lock of the same setup only.
    type: str
    choices: [taken, released]
    default: taken
  create:
    description: True to create a missing folder; otherwise no lock is taken there.
    type: bool
    default: true
  take_over:
    description: True to take the lock from any holder.
    type: bool
    default: false
  stacks:
    description:
      - Stacks that will be changed or removed. While a run uses one of them, the module fails and
        names the run.
    type: list
    elements: path
    default: []
  node_package:
    description:
      - The wheel on the control node that will be installed into O(stacks). Stacks that already
        have it are not changed, so runs may use them.
    type: path
  members:
    description:
      - Addresses of the cluster's hosts. While a run that this host has started uses another host,
        the module fails and names both. An empty list checks nothing.
    type: list
    elements: str
    default: []
  lease:
    description: Seconds after which another control node may take the lock.
    type: int
    default: 3600
attributes:
  check_mode:
    description: Fails if another setup holds the lock; takes no lock.
    support: full
"""

EXAMPLES = r"""
- name: Acquire the setup lock
  ftcluster.cluster.setup_lock:
    prefix: /opt/ftcluster
"""

RETURN = r"""
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import alone_in
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import (
    InUse,
    runs_beyond,
    without_runs,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    make_folder,
    refuse_unguarded,
    write_text,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.stale import running_seconds

NAME = ".setup"
FORMAT = 1  # format of a lock; a lock without a format number has format 0
COMPLETE = ".complete-node_agent"  # in a stack, see the module environment


@dataclass(frozen=True)
class Moment:
    """A moment on a host.

    Attributes:
        clock: seconds since 1970; jumps if somebody sets the host's clock.
        uptime: seconds since the host booted.
        boot: id of the host's boot.
    """

    clock: float
    uptime: float
    boot: str


def this_moment() -> Moment:
    """Return the current moment on this host."""
    return Moment(time.time(), running_seconds(), boot_id())


def new_lock(owner: str, who: str, now: Moment) -> dict[str, Any]:
    """Return the contents of a lock file."""
    since = {"since": now.clock, "uptime": now.uptime, "boot": now.boot}
    return {"format": FORMAT, "owner": owner, "control": owner.split(" ")[0], "who": who, **since}


def held_seconds(lock: Mapping[str, Any], now: Moment) -> float:
    """Return how long a lock of the current boot has been held.

    Locks of older versions have no uptime, so their age is computed from the clock.
    """
    if "uptime" in lock:
        return float(now.uptime - lock["uptime"])
    return float(now.clock - lock.get("since", 0))


def read_lock(path: Path) -> dict[str, Any]:
    """Return the contents of a lock file, or {} if the lock is free or the file is invalid."""
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        return lock if isinstance(lock, dict) and "owner" in lock else {}
    except (OSError, ValueError, RecursionError):
        return {}


def is_free(
    lock: Mapping[str, Any],
    owner: str,
    alive: Collection[str],
    lease: float,
    now: Moment,
) -> bool:
    """Return True if `owner` may take a lock.

    Args:
        lock: contents of the lock.
        owner: the process that requests the lock.
        alive: owners whose processes are running on this control node.
        lease: seconds until a lock of another control node expires.
        now: current moment on the host; a lock from an earlier boot is free.
    """
    if not lock or lock["owner"] == owner or lock.get("boot") != now.boot:
        return True
    if lock.get("control") == owner.split(" ")[0]:
        return lock["owner"] not in alive
    return held_seconds(lock, now) > lease


def refusal(lock: Mapping[str, Any], now: Moment) -> str:
    """Return the error message for a lock that another setup holds."""
    seconds = held_seconds(lock, now) if lock.keys() & {"uptime", "since"} else 0.0
    minutes = max(0, int(seconds)) // 60
    return (
        f"another setup is running here, started {minutes} min ago by "
        f"{lock.get('who', 'an unknown user')}; wait until it ends and run setup again. If it is "
        "no longer running, pass -e ftcluster_take_over=true"
    )


def take(
    path: Path,
    mine: Mapping[str, Any],
    may_take: Callable[[Mapping[str, Any]], bool],
    create: bool = True,
) -> dict[str, Any] | None:
    """Write a lock and return None; if another lock prevents this, return the other lock."""
    if not create and not path.parent.is_dir():
        return None
    make_folder(path.parent)
    with alone_in(path.parent):
        lock = read_lock(path)
        if not may_take(lock):
            return lock
        if lock.get("owner") != mine["owner"]:
            write_text(path, json.dumps(mine) + "\n", 0o644)
    return None


def release(path: Path, owner: str) -> None:
    """Remove a lock if it belongs to this owner."""
    with contextlib.suppress(FileNotFoundError), alone_in(path.parent):
        if read_lock(path).get("owner") == owner:
            path.unlink()


def in_use(stacks: Iterable[str], digest: str) -> list[str]:
    """Return a line for each stack that a run uses; skip stacks with this node package."""
    refusals = []
    for stack in stacks:
        if digest and node_package(Path(stack)) == digest:
            continue
        try:
            with without_runs(stack):
                pass
        except InUse as error:
            refusals.append(str(error))
    return refusals


def node_package(stack: Path) -> str:
    """Return the digest of the node package in a stack."""
    try:
        return (stack / COMPLETE).read_text(encoding="ascii").partition(" ")[0]
    except OSError:
        return ""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "state": {"choices": ["taken", "released"], "default": "taken"},
            "create": {"type": "bool", "default": True},
            "take_over": {"type": "bool", "default": False},
            "stacks": {"type": "list", "elements": "path", "default": []},
            "node_package": {"type": "path"},  # the action plugin reads this option
            "members": {"type": "list", "elements": "str", "default": []},
            "lease": {"type": "int", "default": 3600},
            "from_action": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    options, asks = module.params, module.params["from_action"]
    path, now = Path(options["prefix"]) / NAME, this_moment()
    owner = asks["owner"]
    mine = new_lock(owner, asks["who"], now)

    def may_take(lock: Mapping[str, Any]) -> bool:
        free = is_free(lock, owner, asks["alive"], options["lease"], now)
        return bool(options["take_over"]) or free

    try:
        refuse_unguarded(path.parent)
        problems = in_use(options["stacks"], asks["digest"])
        if options["members"]:
            problems += runs_beyond(path.parent, options["members"])
        if problems:
            module.fail_json(msg="\n".join(problems))
        other: dict[str, Any] | None = None
        if options["state"] == "released":
            if not module.check_mode:
                release(path, owner)
        elif module.check_mode:
            other = None if may_take(read_lock(path)) else read_lock(path)
        else:
            other = take(path, mine, may_take, options["create"])
        if other:
            module.fail_json(msg=refusal(other, now))
    except OSError as error:
        module.fail_json(msg=os_problem(error, path))
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
