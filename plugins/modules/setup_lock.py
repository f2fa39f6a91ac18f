#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""One setup at a time on a host; the action plugin of the same name says who asks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: setup_lock
short_description: Lets one setup at a time work on a host
description:
  - Writes who is at work into C(<prefix>/.setup). A second one is refused with the name of the
    first.
  - What a setup that was killed has left is taken over by the next one from the same control node;
    by those of others after O(lease), after the host was booted again, or with O(take_over).
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  prefix:
    description: The folder that the cluster lives in.
    type: path
    required: true
  state:
    description: V(released) gives back what the same setup took, and nothing else.
    type: str
    choices: [taken, released]
    default: taken
  create:
    description: Make the folder where it is missing; otherwise nothing is taken there.
    type: bool
    default: true
  take_over:
    description: Take it whoever has it.
    type: bool
    default: false
  stacks:
    description:
      - Stacks that are about to be changed or removed. While a run uses one of them, the lock is
        refused with the run's name.
    type: list
    elements: path
    default: []
  node_package:
    description:
      - The wheel on the control node that is about to be installed into O(stacks). Those that have
        it already are not changed, and may be used.
    type: path
  lease:
    description: After so many seconds another control node may take it.
    type: int
    default: 3600
attributes:
  check_mode:
    description: Says whether somebody is at work; takes nothing.
    support: full
"""

EXAMPLES = r"""
- name: Be the only one
  ftcluster.cluster.setup_lock:
    prefix: /opt/ftcluster
"""

RETURN = r"""
"""

import contextlib  # noqa: E402
import fcntl  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import (  # noqa: E402
    InUse,
    without_runs,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (  # noqa: E402
    make_folder,
    refuse_unguarded,
    write_text,
)

NAME = ".setup"


def boot():
    """What tells this boot of the host from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_lock(path):
    """Who is at work, or nothing."""
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        return lock if isinstance(lock, dict) and "owner" in lock else {}
    except (OSError, ValueError):
        return {}


def is_free(lock, owner, alive, lease, now, booted):
    """Whether a lock may be taken.

    Takes the lock that is there, the one who asks, the setups that live on his control node, the
    lease in seconds, the time and the host's boot.
    """
    if not lock or lock["owner"] == owner or lock.get("boot") != booted:
        return True
    if lock.get("control") == owner.split(" ")[0]:
        return lock["owner"] not in alive
    return now - lock.get("since", 0) > lease


def words(lock, now):
    """The refusal."""
    minutes = max(0, int(now - lock.get("since", now))) // 60
    return (
        f"another setup is at work here: {lock.get('who', 'unknown')}, for {minutes} min; wait for "
        "it to end and run setup again. If it is not at work any more: -e ftcluster_take_over=true"
    )


@contextlib.contextmanager
def alone_in(folder):
    """Keep others out for the moment between reading the lock and writing it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def take(path, mine, may_take, create=True):
    """Write a lock, unless there is one that may not be taken, which is returned."""
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


def release(path, owner):
    """Remove a lock, if it is this owner's."""
    with contextlib.suppress(FileNotFoundError), alone_in(path.parent):
        if read_lock(path).get("owner") == owner:
            path.unlink()


def in_use(stacks, digest):
    """Why stacks cannot be changed now, one line for each that a run uses.

    Takes their folders, and the digest of the node package that they are to have.
    """
    found = []
    for stack in stacks:
        if digest and node_package(Path(stack)) == digest:
            continue
        try:
            with without_runs(stack):
                pass
        except InUse as error:
            found.append(str(error))
    return found


def node_package(stack):
    """The digest of the node package that a stack has, see the module environment."""
    try:
        return (stack / ".complete-node_agent").read_text(encoding="ascii").partition(" ")[0]
    except OSError:
        return ""


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "state": {"choices": ["taken", "released"], "default": "taken"},
            "create": {"type": "bool", "default": True},
            "take_over": {"type": "bool", "default": False},
            "stacks": {"type": "list", "elements": "path", "default": []},
            "digest": {"type": "str", "default": ""},
            "lease": {"type": "int", "default": 3600},
            "owner": {"type": "str", "required": True},
            "who": {"type": "str", "required": True},
            "alive": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    path, now, booted = Path(given["prefix"]) / NAME, time.time(), boot()
    mine = {
        "owner": given["owner"],
        "control": given["owner"].split(" ")[0],
        "who": given["who"],
        "since": now,
        "boot": booted,
    }

    def may_take(lock):
        owner, alive, lease = (given[key] for key in ("owner", "alive", "lease"))
        return given["take_over"] or is_free(lock, owner, alive, lease, now, booted)

    try:
        refuse_unguarded(path.parent)
        if problems := in_use(given["stacks"], given["digest"]):
            module.fail_json(msg="\n".join(problems))
        if module.check_mode:
            lock = read_lock(path)
            other = lock if given["state"] == "taken" and not may_take(lock) else None
        elif given["state"] == "released":
            other = release(path, given["owner"])
        else:
            other = take(path, mine, may_take, given["create"])
        if other:
            module.fail_json(msg=words(other, now))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror}")
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
