#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Starts a run's supervisor for an account, from a stack that only root can have changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: start_supervisor
short_description: Starts a run's supervisor as a unit of systemd
description:
  - As root, starts the supervisor of an account's run as a process of the account.
  - Uses the stack that the link C(<prefix>/current) points to, whatever the account requests, and
    executes it only if root owns it and all folders on the way.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.prefix
options:
  run:
    description: The run's id; its folder is C(<prefix>/runs/<run>).
    type: str
    required: true
  user:
    description: The training account.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Start the supervisor
  ftcluster.cluster.start_supervisor:
    prefix: /opt/ftcluster
    run: quickstart-20260131-101500-a1b2c3
    user: ftcluster
  become: true
"""

RETURN = r"""
rc:
  description: The exit code; 0 if the run has a supervisor, 3 if systemd cannot run it as a unit.
  returned: success
  type: int
refused:
  description: The reason why root does not execute the stack, or an empty string.
  returned: success
  type: str
stderr:
  description: Error output of the supervisor.
  returned: success
  type: str
"""

import re
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    refuse_unguarded,
    refuse_unowned,
)

RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # as in ftcluster_common.protocol
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
PROGRAM = "ftcluster_train/host/supervisor.py"
# files of site-packages that Python executes before the program
AT_START = ("*.pth", "*customize.py")
SECONDS = 90  # the program checks twice for up to 25 s, and needs up to 20 s to start a unit


def stack_of(prefix: Path) -> Path:
    """Return the stack in use, after checking that only root can change its code.

    Raises:
        OSError: another user could have changed a file; the message names the file and has advice.
        ValueError: there is no stack, or the link `current` leads out of the folder of stacks.
    """
    link = prefix / "current"
    if not link.exists():
        raise ValueError(f"{link} does not lead to a stack: run ftcluster setup")
    refuse_unguarded(link)
    stack = link.resolve()
    if stack.parent != (prefix / "stacks").resolve():
        raise ValueError(
            f"{link} leads to {stack}, which is not in {prefix}/stacks: run ftcluster setup"
        )
    refuse_unowned(stack / "bin/python")
    programs = sorted(stack.glob(f"lib/python3*/site-packages/{PROGRAM}"))
    if not programs:
        raise ValueError(
            f"{stack} contains no node package that this control node's ftcluster can start: run "
            f"ftcluster setup, or install the version that set up the hosts on the control node"
        )
    for program in programs:
        refuse_unowned(program)
        for pattern in AT_START:
            for path in program.parents[1].glob(pattern):
                refuse_unowned(path)
    return stack


def command_of(stack: Path, run_dir: Path, user: str) -> list[str]:
    """Return the command for root. It uses no environment variables and no files in homes."""
    python = [str(stack / "bin/python"), "-I", "-B", "-m", "ftcluster_train.host.supervisor"]
    return [*python, "start", str(run_dir), "--user", user]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "run": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
        },
    )
    prefix, run, user = Path(module.params["prefix"]), module.params["run"], module.params["user"]
    for name, value, form in (("run", run, RUN), ("user", user, USER)):
        if not form.fullmatch(value):
            module.fail_json(msg=f"{name} may contain only letters, digits and ._-, got {value!r}")
    try:
        stack = stack_of(prefix)
    except OSError as error:
        message = f"{error.filename or prefix}: {error.strerror}"
        module.exit_json(
            changed=False, rc=1, refused=f"root does not execute the stack: {message}", stderr=""
        )
    except ValueError as error:
        module.exit_json(changed=False, rc=1, refused=str(error), stderr="")
    try:
        done = subprocess.run(
            command_of(stack, prefix / "runs" / run, user), cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        module.exit_json(changed=False, rc=1, refused="", stderr=str(error))
    module.exit_json(
        changed=True,
        rc=done.returncode,
        refused="",
        stderr=done.stderr.decode(errors="replace").strip(),
    )


if __name__ == "__main__":
    main()
