#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Gives the files of a removed account to root, and removes access granted by the account."""

from __future__ import annotations

DOCUMENTATION = r"""
module: give_to_root
short_description: Gives root the files of a removed account in a folder
description:
  - Makes root the owner of a folder and of the account's files in it, and removes their access
    control lists. Otherwise the next user with the account's number would own the files, and the
    lists would let other users read the next account's files.
  - Files of other users keep their owner, even if the account has made a hard link to one.
  - Follows no links, and does not enter file systems that are mounted in the folder.
  - Run it after the account's processes have ended.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.keeps
options:
  path:
    description: The folder.
    type: path
    required: true
  uid:
    description: The number of the account. Not that of root.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Give the remaining runs to root
  ftcluster.cluster.give_to_root:
    path: /opt/ftcluster/runs
    uid: 998
  become: true
"""

RETURN = r"""
given:
  description: The number of files and folders with the new owner root.
  returned: success
  type: int
"""

import os
import stat
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import remove_acl
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    AGAIN,
    PATH_ONLY,
    READ,
    RefusedPath,
    opened_parent,
)

FOLDER = READ | os.O_DIRECTORY


def give(name: str, folder: int, uid: int, device: int) -> tuple[bool, bool]:
    """Give one file or folder to root; return (changed, True if the caller must enter a folder).

    Args:
        folder: descriptor of the folder that contains `name`.
        device: device of the file system; files on other devices are not changed.
    """
    descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
    try:
        state = os.fstat(descriptor)
        if state.st_dev != device:
            return False, False
        if state.st_uid == uid:
            os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISLNK(state.st_mode):
                remove_acl(descriptor)
        return state.st_uid == uid, stat.S_ISDIR(state.st_mode)
    finally:
        os.close(descriptor)


def give_contents(here: int, uid: int) -> int:
    """Give a user's files in an open folder to root; return the number of changed files.

    This works for any depth of folders, without recursion and with few open descriptors.

    Args:
        here: descriptor of the folder, which is closed.

    Raises:
        OSError: a file or folder cannot be read or changed, or was replaced meanwhile.
    """
    count, above, waiting = 0, [os.fstat(here)], [names_in(here)]
    try:
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                changed, is_folder = give(name, here, uid, above[0].st_dev)
                count += changed
                if is_folder:
                    below = os.open(name, FOLDER, dir_fd=here)
                    os.close(here)
                    here = below
                    above.append(os.fstat(here))
                    waiting.append(names_in(here))
                continue
            waiting.pop()
            above.pop()
            if waiting:
                upper = os.open("..", FOLDER, dir_fd=here)
                os.close(here)
                here = upper
                if not os.path.samestat(os.fstat(here), above[-1]):
                    raise RefusedPath("..", "a folder was moved meanwhile", AGAIN)
        return count
    finally:
        os.close(here)


def names_in(folder: int) -> list[str]:
    """Return the names in an open folder."""
    return os.listdir(folder)


def give_all(path: str | Path, uid: int) -> int:
    """Give a user's files in a folder, then the folder, to root; return the number of changes."""
    with opened_parent(path, follow=False) as (parent, name):
        here = os.open(name, FOLDER, dir_fd=parent)
        device = os.fstat(here).st_dev
        return give_contents(here, uid) + give(name, parent, uid, device)[0]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "uid": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    path, uid = module.params["path"], module.params["uid"]
    if uid <= 0:
        module.fail_json(msg=f"uid is {uid}; it has to be the number of an account other than root")
    if module.check_mode:
        module.exit_json(changed=True, given=0)
    try:
        count = give_all(path, uid)
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.filename or ''}: {error.strerror or error}")
    module.exit_json(changed=count > 0, given=count)


if __name__ == "__main__":
    main()
