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
    description: The folder that the cluster lives in; it is made where it is missing.
    type: path
    required: true
  state:
    description: V(released) gives back what the same setup took, and nothing else.
    type: str
    choices: [taken, released]
    default: taken
  take_over:
    description: Take it whoever has it.
    type: bool
    default: false
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

import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

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


def write_lock(path, lock):
    """Write the lock, unless somebody else did meanwhile; returns whether it is ours."""
    temporary = path.with_name(f"{NAME}.{os.getpid()}")
    temporary.write_text(json.dumps(lock) + "\n", encoding="utf-8")
    try:
        os.link(temporary, path)  # fails where there is one
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "state": {"choices": ["taken", "released"], "default": "taken"},
            "take_over": {"type": "bool", "default": False},
            "lease": {"type": "int", "default": 3600},
            "owner": {"type": "str", "required": True},
            "who": {"type": "str", "required": True},
            "alive": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    path, now = Path(given["prefix"]) / NAME, time.time()
    lock = read_lock(path)
    try:
        if given["state"] == "released":
            if lock.get("owner") == given["owner"] and not module.check_mode:
                path.unlink(missing_ok=True)
            module.exit_json(changed=False)
        free = is_free(lock, given["owner"], given["alive"], given["lease"], now, boot())
        if not free and not given["take_over"]:
            module.fail_json(msg=words(lock, now))
        if not module.check_mode and lock.get("owner") != given["owner"]:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            mine = {
                "owner": given["owner"],
                "control": given["owner"].split(" ")[0],
                "who": given["who"],
                "since": now,
                "boot": boot(),
            }
            if not write_lock(path, mine):
                module.fail_json(msg=words(read_lock(path), now))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror}")
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
