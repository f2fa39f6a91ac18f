#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Gives the files of a removed account to root, and removes access granted by the account."""

from __future__ import annotations

DOCUMENTATION = r"""
module: give_to_root
short_description: Gives root the files of a removed account in a folder
description:
  - Makes root the owner of a folder and of the account's files in it, and removes their access
    control lists. Otherwise the next account with the same user id would own the files, and the
    lists would let other users read its files.
  - Files of other users keep their owner, even if the account has made a hard link to such a file.
  - Follows no links, and does not enter file systems that are mounted in the folder. RV(left) lists
    these file systems and files whose owner has no account. A missing folder is not an error.
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
    description: The user id of the account. Root's user id is an error.
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
  description: The number of files and folders whose owner was changed to root.
  returned: success
  type: int
left:
  description: >-
    Paths that the module did not change although their owner has no account here, with the owner's
    user id. Only the folder is listed, not its contents. A later account may get this user id.
  returned: success
  type: list
  elements: str
  sample: ["/opt/ftcluster/runs/a (user id 1006)"]
"""

import os
import pwd
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
MOST_LEFT = 20  # maximum number of listed paths


class Remains:
    """The paths that were not given to root although their owner has no account.

    Attributes:
        left: paths with the user ids of their owners, at most MOST_LEFT.
        uid: user id of the account that is removed; it counts as an owner without an account.
    """

    def __init__(self, uid: int) -> None:
        self.left: list[str] = []
        self.uid = uid
        self._has_account: dict[int, bool] = {}

    def add(self, path: str, owner: int, above: int) -> None:
        """List a path if its owner has no account, unless the folder above has the same owner."""
        if owner not in self._has_account:
            self._has_account[owner] = owner != self.uid and has_account(owner)
        if not self._has_account[owner] and owner != above and len(self.left) < MOST_LEFT:
            self.left.append(f"{path} (user id {owner})")


def has_account(uid: int) -> bool:
    """Return True if an account of this host has the user id."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def give(
    name: str, folder: int, uid: int, device: int, remains: Remains, path: str
) -> tuple[bool, bool]:
    """Give one file or folder to root; return (changed, True if the caller must enter a folder).

    Args:
        folder: descriptor of the folder that contains `name`.
        device: device of the file system; files on other devices are not changed.
        remains: receives the file if it keeps an owner without an account.
        path: path of the file, for `remains`.
    """
    descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
    try:
        state = os.fstat(descriptor)
        if state.st_dev != device or state.st_uid != uid:
            remains.add(path, state.st_uid, os.fstat(folder).st_uid)
        if state.st_dev != device:
            return False, False
        if state.st_uid == uid:
            os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISLNK(state.st_mode):
                remove_acl(descriptor)
        return state.st_uid == uid, stat.S_ISDIR(state.st_mode)
    finally:
        os.close(descriptor)


def give_contents(here: int, uid: int, remains: Remains, path: str) -> int:
    """Give a user's files in an open folder to root; return the number of changed files.

    This works for any depth of folders, without recursion and with few open descriptors.

    Args:
        here: descriptor of the folder, which is closed.
        remains: receives files that keep an owner without an account.
        path: path of the folder, for `remains`.

    Raises:
        OSError: a file or folder cannot be read or changed, or was replaced meanwhile.
    """
    count, above, waiting, names = 0, [os.fstat(here)], [names_in(here)], [path]
    try:
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                inner = "/".join((*names, name))
                changed, is_folder = give(name, here, uid, above[0].st_dev, remains, inner)
                count += changed
                if is_folder:
                    below = os.open(name, FOLDER, dir_fd=here)
                    os.close(here)
                    here = below
                    above.append(os.fstat(here))
                    waiting.append(names_in(here))
                    names.append(name)
                continue
            waiting.pop()
            above.pop()
            names.pop()
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


def give_all(path: str | Path, uid: int) -> tuple[int, list[str]]:
    """Give a user's files in a folder, then the folder, to root.

    Returns:
        The number of changes, and the paths that keep an owner without an account.
    """
    remains = Remains(uid)
    with opened_parent(path, follow=False) as (parent, name):
        here = os.open(name, FOLDER, dir_fd=parent)
        device = os.fstat(here).st_dev
        count = give_contents(here, uid, remains, str(path))
        count += give(name, parent, uid, device, remains, str(path))[0]
    return count, remains.left


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
        module.fail_json(msg=f"uid is {uid}; it must be the user id of an account other than root")
    if module.check_mode:
        module.exit_json(changed=os.path.lexists(path), given=0, left=[])
    try:
        count, left = give_all(path, uid) if os.path.lexists(path) else (0, [])
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.filename or ''}: {error.strerror or error}")
    module.exit_json(changed=count > 0, given=count, left=left)


if __name__ == "__main__":
    main()
