#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Manages the links current and previous, which select the stack in use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_link
short_description: Makes a stack the current one, or the previous one again
description:
  - Changes the link C(<prefix>/current) atomically, and keeps its old target in
    C(<prefix>/previous).
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.prefix
options:
  path:
    description: The stack's folder, for O(state=current).
    type: path
  state:
    description:
      - V(previous) exchanges the two links.
      - V(pruned) removes the stacks that no link points to and no run uses, and the layers
        (packages of users' requirements) of all stacks that no run uses.
      - V(removed) removes all stacks and both links, or nothing if a run uses a stack.
    type: str
    choices: [current, previous, pruned, removed]
    default: current
attributes:
  check_mode:
    description: Reports the changes, and fails if there is no previous stack.
    support: full
"""

EXAMPLES = r"""
- name: Use the previous stack again
  ftcluster.cluster.stack_link:
    prefix: /opt/ftcluster
    state: previous
"""

RETURN = r"""
current:
  description: The stack in use afterwards.
  returned: success
  type: str
removed:
  description: The folders that were removed.
  returned: with O(state=pruned) and O(state=removed)
  type: list
  elements: str
kept:
  description: Reasons why other folders were kept, one line for each.
  returned: with O(state=pruned)
  type: list
  elements: str
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils import safe_path
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import InUse, without_runs


def target(link: Path) -> str:
    """Return the target of a link, or ""."""
    try:
        return os.readlink(link)  # noqa: PTH115 - Path.readlink is of Python 3.9
    except OSError:
        return ""


def point(link: Path, path: str) -> None:
    """Create or change a link atomically."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path)
    temporary.replace(link)


def is_finished(path: str) -> bool:
    """Return True if an environment is completely installed."""
    return bool(path) and (Path(path) / ".complete").is_file()


def unused(prefix: Path) -> list[Path]:
    """Return the stacks' folders to which no link leads; return none if no stack is in use."""
    if not target(prefix / "current"):
        return []
    # compare resolved paths, because a link may contain another spelling of the prefix
    used = {(prefix / link).resolve() for link in ("current", "previous")}
    return [path for path in sorted(prefix.glob("stacks/[!.]*")) if path.resolve() not in used]


def prune(module: Any, prefix: Path) -> None:
    """Remove unused stacks, and end the module."""
    removed, kept, left = [], [], []
    for path in unused(prefix):
        try:
            with without_runs(path):
                if module.check_mode or remove(path):
                    removed.append(path.name)
                else:
                    left.append(str(path))
        except InUse as error:
            kept.append(str(error))
    for path in sorted(prefix.glob("layers/[!.]*")):
        stack = path.name.partition(".staging-")[0].rpartition("-")[0]
        try:
            with without_runs(prefix / "stacks" / stack):
                if not module.check_mode:
                    safe_path.remove(path)
                removed.append(f"layers/{path.name}")
        except InUse as error:
            kept += [str(error)] if str(error) not in kept else []
        except OSError as error:
            left.append(f"{path} ({error.strerror})")
    if left:
        module.fail_json(msg=f"{', '.join(left)} cannot be removed")
    current = target(prefix / "current")
    module.exit_json(changed=bool(removed), removed=removed, kept=kept, current=current)


def remove_all(module: Any, prefix: Path) -> None:
    """If no run uses a stack, remove all stacks and links; then end the module."""
    stacks = sorted(prefix.glob("stacks/[!.]*"))
    links = [prefix / name for name in ("current", "previous") if target(prefix / name)]
    changed = bool(links) or (prefix / "stacks").exists()
    try:
        with contextlib.ExitStack() as held:
            for path in stacks:
                held.enter_context(without_runs(path))
            if not module.check_mode and changed:
                for link in links:
                    link.unlink()
                for path in stacks:
                    remove(path)
                shutil.rmtree(prefix / "stacks")
    except (InUse, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, removed=[path.name for path in stacks], current="")


def remove(path: Path) -> bool:
    """Remove a folder with its contents; return True if it no longer exists."""
    # remove the marker first, so that an incomplete stack is installed again
    with contextlib.suppress(OSError):
        (path / ".complete").unlink()
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "path": {"type": "path"},
            "state": {
                "choices": ["current", "previous", "pruned", "removed"],
                "default": "current",
            },
        },
        required_if=[("state", "current", ["path"])],
        supports_check_mode=True,
    )
    prefix = Path(module.params["prefix"])
    try:
        safe_path.refuse_unguarded(prefix / "stacks")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    if module.params["state"] == "pruned":
        prune(module, prefix)
    if module.params["state"] == "removed":
        remove_all(module, prefix)
    current, previous = target(prefix / "current"), target(prefix / "previous")
    wanted = module.params["path"] if module.params["state"] == "current" else previous
    if module.params["state"] == "previous" and not is_finished(previous):
        module.fail_json(
            msg=f"there is no previous stack in {prefix} to return to"
            + (f": {previous} is incomplete" if previous else ": only one stack was ever set up")
        )
    if wanted == current:
        module.exit_json(changed=False, current=current)
    if not module.check_mode:
        if not is_finished(wanted):
            module.fail_json(msg=f"{wanted} is not completely installed; run the stage stack again")
        try:
            if is_finished(current):
                point(prefix / "previous", current)
            point(prefix / "current", wanted)
        except OSError as error:
            module.fail_json(msg=f"{error.filename or prefix}: {error.strerror}")
    module.exit_json(changed=True, current=wanted)


if __name__ == "__main__":
    main()
