#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Creates the folder of a new run on the head with its files, and returns the stack in use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_folder
short_description: Creates the folder of a new run, unless the head rejects the run
description:
  - Resolves the link to the stack in use, so that a later change of the link does not affect the
    run.
  - Rejects a run if the hosts' ftcluster cannot read its documents, or another run uses the hosts.
  - Omits the format number for hosts that read format 0, because its documents contain no number.
  - Fails if a run of this name exists, for example if two launches chose the same name.
  - As root, rejects a folder that other users could replace.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.skips
options:
  path:
    description: The run's folder. Missing folders above it are created.
    type: path
    required: true
  stack:
    description: The link to the stack in use.
    type: path
    required: true
  version:
    description: The version of ftcluster on the control node.
    type: str
    required: true
  format:
    description: The format of the documents that the control node sends.
    type: int
    required: true
  later_fields:
    description: Fields of these documents that do not exist in format 0.
    type: list
    elements: str
    default: []
  alone:
    description: True to reject the run while another run uses the hosts.
    type: bool
    default: true
  mode:
    description: Permissions of the folder in octal digits, quoted.
    type: str
    default: "0750"
  texts:
    description: Contents of the files in the folder, by file name. Only their owner may read them.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Create the run's folder
  ftcluster.cluster.run_folder:
    path: /opt/ftcluster/runs/mrpc-20260102-030405
    stack: /opt/ftcluster/current
    version: 0.1.0
    format: 1
"""

RETURN = r"""
stack:
  description: The folder of the stack in use.
  returned: if the run is not refused
  type: str
  sample: /opt/ftcluster/stacks/native-1b2c3d4e5f60
format:
  description: The format that the hosts read.
  returned: if the run is not refused
  type: int
  sample: 1
refused:
  description: The reason why the run is refused, or an empty string.
  returned: success
  type: str
"""

import json
import re
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import remove_acl
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    opened,
    refuse_unguarded,
    write_text,
)

REFUSED = 3  # exit code of ftcluster_train.host.lease
PACKAGES = "lib/python3*/site-packages"
RUN_FORMAT = re.compile(r"^RUN_FORMAT = (\d{1,9})\b", re.MULTILINE)
SUPERVISOR = "ftcluster_train/host/supervisor.py"
OLDEST = -1
DOCUMENTS = ("job.json", "planned.json")


def installed_version(stack: Path) -> str:
    """Return the version of ftcluster_train in a stack, or "" if there is none."""
    found = sorted(stack.glob(f"{PACKAGES}/ftcluster_train-*.dist-info"))
    return found[-1].name[len("ftcluster_train-") : -len(".dist-info")] if found else ""


def read_format(stack: Path) -> int:
    """Return the format of launch.json and job.json that the hosts' ftcluster reads.

    Return OLDEST if the package is so old that its programs have other names than today.
    """
    for path in stack.glob(f"{PACKAGES}/ftcluster_common/protocol/formats.py"):
        found = RUN_FORMAT.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            return int(found.group(1))
    older = installed_version(stack) and not list(stack.glob(f"{PACKAGES}/{SUPERVISOR}"))
    return OLDEST if older else 0  # a version whose documents had no format number


def without_number(text: str) -> str:
    """Remove the format number from a JSON document, for hosts of format 0."""
    document = json.loads(text)
    document.pop("format", None)
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


def format_refusal(stack: Path, version: str, sent: int, later_fields: list[str]) -> str:
    """Return the reason why the hosts' ftcluster cannot read a run's documents; "" if it can.

    Args:
        stack: folder of the stack in use.
        version: version of ftcluster on the control node.
        sent: format of the documents.
        later_fields: fields of the documents that format 0 lacks.
    """
    installed, read = installed_version(stack), read_format(stack)
    if installed in ("", version) or read >= sent or (read == 0 and not later_fields):
        return ""
    fields = " with " + ", ".join(later_fields) if later_fields else ""
    return (
        f"the hosts have ftcluster {installed}, which cannot read a run{fields} from ftcluster "
        f"{version} on this control node: run ftcluster setup, or install ftcluster {installed} "
        "here"
    )


def lease_refusal(stack: Path, runs: Path, alone: bool) -> str:
    """Return the reason why another run prevents a new run on the head, or "".

    Args:
        stack: folder of the stack in use.
        runs: folder of all runs.
        alone: True if the run must not share the head.
    """
    if alone:
        lease = "ftcluster_train.host.lease"
        argv = [f"{stack}/bin/python", "-I", "-B", "-m", lease, "look", str(runs)]
        done = subprocess.run(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", check=False
        )
        if done.returncode == REFUSED:
            return done.stderr.decode(errors="replace").strip()
    return ""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "stack": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "format": {"type": "int", "required": True},
            "later_fields": {"type": "list", "elements": "str", "default": []},
            "alone": {"type": "bool", "default": True},
            "mode": {"type": "str", "default": "0750"},
            "texts": {"type": "dict", "default": {}},
        }
    )
    path, link = Path(module.params["path"]), Path(module.params["stack"])
    try:
        stack = link.resolve(strict=True)
    except (OSError, RuntimeError):  # links in a loop
        module.fail_json(msg=f"{link} does not lead to a stack: run ftcluster setup")
    try:
        refused = format_refusal(
            stack, module.params["version"], module.params["format"], module.params["later_fields"]
        ) or lease_refusal(stack, path.parent, module.params["alone"])
        if refused:
            module.exit_json(changed=False, refused=refused)
        refuse_unguarded(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        read = min(read_format(stack), module.params["format"])
        for name, text in module.params["texts"].items():
            has_number = read > 0 or name not in DOCUMENTS
            write_text(path / name, text if has_number else without_number(text))
        with opened(path) as descriptor:
            remove_acl(descriptor)
        path.chmod(int(module.params["mode"], 8))
    except OSError as error:
        module.fail_json(msg=os_problem(error, path))
    module.exit_json(changed=True, stack=str(stack), format=read, refused="")


if __name__ == "__main__":
    main()
