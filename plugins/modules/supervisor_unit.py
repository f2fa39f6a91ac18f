#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Starts a run's supervisor as a unit of systemd, as root."""

from __future__ import annotations

DOCUMENTATION = r"""
module: supervisor_unit
short_description: Starts a run's supervisor as a unit of systemd that belongs to an account
description:
  - For root. Executes nothing but a stack below C(<prefix>/stacks) that root owns the whole way
    down and no other user may write to, because the stack's name comes from the account.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  prefix:
    description: The folder that the cluster lives in.
    type: path
    required: true
  stack:
    description: The run's stack, or the link C(<prefix>/current).
    type: path
    required: true
  run_dir:
    description: The run's folder.
    type: path
    required: true
  user:
    description: The account that the supervisor runs as.
    type: str
    required: true
attributes:
  check_mode:
    description: Not supported, and skipped.
    support: none
"""

EXAMPLES = r"""
- name: Start the supervisor
  ftcluster.cluster.supervisor_unit:
    prefix: /opt/ftcluster
    stack: /opt/ftcluster/stacks/torch-2.8
    run_dir: /opt/ftcluster/runs/quickstart-1
    user: ftcluster
  become: true
"""

RETURN = r"""
started:
  description: Whether the run has a supervisor now. It has none where it cannot be a unit.
  returned: success
  type: bool
"""

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils import safe_path

# of site-packages: what Python itself imports at its start, and the node package
IMPORTED = ("*.pth", "*customize*", "ftcluster_*", "ftcluster_*/**/*")


def trusted_python(prefix, stack):
    """The Python of a stack, if only root can have made it and what it imports.

    Raises:
        ValueError: the stack is not one of the prefix.
        OSError: it is missing, or another user could have made or changed it.
    """
    path = Path(stack)
    if path != prefix / "current" and not safe_path.is_child(path, prefix / "stacks"):
        raise ValueError(f"{stack} is not a stack of {prefix}; run ftcluster setup")
    safe_path.refuse_foreign(path)
    real = path.resolve(strict=True)  # all links on the way are root's
    if not safe_path.is_child(real, (prefix / "stacks").resolve()):
        raise ValueError(f"{stack} leads to {real}, no stack of {prefix}; run ftcluster setup")
    python = real / "bin" / "python"
    safe_path.refuse_foreign(python)
    safe_path.refuse_foreign(real / "pyvenv.cfg")
    for folder in real.glob("lib/python3*/site-packages"):
        safe_path.refuse_foreign(folder)
        for pattern in IMPORTED:
            for found in folder.glob(pattern):
                safe_path.refuse_foreign(found)
    return python


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "stack": {"type": "path", "required": True},
            "run_dir": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
        },
    )
    given = module.params
    try:
        python = trusted_python(Path(given["prefix"]), given["stack"])
    except OSError as error:
        module.fail_json(msg=f"{error.filename or given['stack']}: {error.strerror}", refused=True)
    except ValueError as error:
        module.fail_json(msg=str(error), refused=True)
    start = ["-I", "-B", "-m", "ftcluster_train.supervisor", "start", given["run_dir"]]
    done = subprocess.run(
        [python, *start, "--user", given["user"]], cwd="/", stdin=subprocess.DEVNULL,
        capture_output=True, check=False,
    )  # fmt: skip
    module.exit_json(changed=done.returncode == 0, started=done.returncode == 0)


if __name__ == "__main__":
    main()
