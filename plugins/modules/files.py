#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Creates several small text files and folders in one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: files
short_description: Creates several small text files and folders in one task
description:
  - Brings folders and small text files into the described state, in the given order.
  - Needs one round trip, whereas M(ansible.builtin.file) and M(ansible.builtin.copy) need one or
    two for each file. A run without changes spends most of its time on these round trips.
  - A file is replaced as a whole by renaming, so a reader sees either the old text or the new text.
  - Setting a mode or an owner also removes access control lists, which is reported as a change.
  - Rejects a path if any part of it is a link that a less trusted user may have made, or if it is
    neither a folder nor a regular file with a single name. Root also refuses to keep its files in a
    folder that others may change.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.changes
  - ftcluster.cluster.attributes.texts
options:
  files:
    description: Files and folders to create, change or remove.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The absolute path.
        type: path
        required: true
      state:
        description: >-
          C(absent) removes folders with their contents, C(absent_if_empty) only an empty folder.
        type: str
        choices: [file, directory, absent, absent_if_empty]
        default: file
      content:
        description: The whole text of a file. Without it, an existing file keeps its text.
        type: str
      mode:
        description: Permissions in octal digits, quoted.
        type: str
      owner:
        description: The user's name. If empty, the owner is not changed.
        type: str
        default: ""
      group:
        description: The group's name. If empty, the group is not changed.
        type: str
        default: ""
"""

EXAMPLES = r"""
- name: Write the job
  ftcluster.cluster.files:
    files:
      - {path: /opt/ftcluster/runs/a, state: directory, mode: "0755"}
      - {path: /opt/ftcluster/runs/a/job.json, content: "{}", mode: "0644"}
"""

RETURN = r"""
changed_paths:
  description: The paths that were changed, or would be changed in check mode.
  returned: success
  type: list
  elements: str
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import has_acl, remove_acl
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    AGAIN,
    MOST_BYTES,
    PATH_ONLY,
    RefusedPath,
    difference,
    make_folder,
    opened,
    opened_parent,
    read_text,
    refuse_unguarded,
    remove,
    status,
    trusted,
    write_text,
)

# values instead of a user or group id
KEEP = -1
UNKNOWN = -2


def number_of(name: str, find: Callable[[str], Any], check_mode: bool) -> int:
    """Return the id of a user or group; return KEEP if the name is empty.

    Raises:
        LookupError: the name does not exist. In check mode, UNKNOWN is returned instead, because
            an earlier task would have created the user or group.
    """
    try:
        return find(name)[2] if name else KEEP
    except KeyError:
        if check_mode:
            return UNKNOWN
        raise LookupError(f"no such user or group: {name!r}") from None


def attributes_differ(state: os.stat_result | None, mode: int | None, uid: int, gid: int) -> bool:
    """Return True if mode, owner or group differ from the requested ones."""
    return (
        state is None
        or (mode is not None and stat.S_IMODE(state.st_mode) != mode)
        or uid not in (KEEP, state.st_uid)
        or gid not in (KEEP, state.st_gid)
    )


def has_other_rights(path: str, state: os.stat_result | None) -> bool:
    """Return True if a file or folder has an ACL that a change of owner must remove."""
    if state is None or stat.S_ISLNK(state.st_mode):
        return False
    with opened_parent(path) as (folder, name):
        descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
        try:
            return has_acl(descriptor)
        finally:
            os.close(descriptor)


def set_attributes(
    path: str, is_kind: Callable[[int], bool], mode: int | None, uid: int, gid: int
) -> None:
    """Set owner, group and mode of an existing path, and remove its ACLs.

    Raises:
        RefusedPath: the path is of another kind now (file or folder), or may be a hard link to a
            system file.
    """
    with opened(path) as descriptor:
        state = os.fstat(descriptor)
        if not is_kind(state.st_mode):
            raise RefusedPath(
                path, "was replaced meanwhile", "find out who did it, and run this again"
            )
        if stat.S_ISREG(state.st_mode) and state.st_nlink > 1:
            raise RefusedPath(
                path,
                f"is one of {state.st_nlink} hard links to a file that may be another user's",
                AGAIN,
            )
        os.fchown(descriptor, uid, gid)
        remove_acl(descriptor)
        if mode is not None:
            os.fchmod(descriptor, mode)


def text_to_show(path: str, state: os.stat_result | None) -> str | None:
    """Return the text of an existing file for display; None if the file is too large."""
    too_large = state is not None and stat.S_ISREG(state.st_mode) and state.st_size > MOST_BYTES
    return None if too_large else read_text(path)


def remove_empty(path: str, check_mode: bool) -> bool:
    """Remove a folder if it is empty; return True if it was removed."""
    found = status(path, follow=False)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return False
    if check_mode:
        with opened(path) as descriptor:
            return not os.listdir(descriptor)  # noqa: PTH208 - Path takes no descriptor
    try:
        with opened_parent(path, follow=False) as (folder, name):
            os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def settle(entry: Mapping[str, Any], check_mode: bool) -> tuple[bool, str | None, str | None]:
    """Bring one path into the requested state; return (changed, text before, text after)."""
    path, state, content = entry["path"], entry["state"], entry["content"]
    if state == "absent_if_empty":
        return remove_empty(path, check_mode), "", ""
    if state == "absent":
        found = status(path, follow=False)
        if found is None:
            return False, None, None
        before = text_to_show(path, found) if stat.S_ISREG(found.st_mode) else None
        if not check_mode:
            remove(path)
        return True, before or "", ""
    mode = int(entry["mode"], 8) if entry["mode"] else None
    uid = number_of(entry["owner"], pwd.getpwnam, check_mode)
    gid = number_of(entry["group"], grp.getgrnam, check_mode)
    if uid == KEEP or trusted(uid):
        refuse_unguarded(path)
    found = status(path)
    changed = attributes_differ(found, mode, uid, gid)
    if mode is not None or uid != KEEP:
        changed = changed or has_other_rights(path, found)
    if state == "directory":
        changed = changed or found is None or not stat.S_ISDIR(found.st_mode)
        if changed and not check_mode:
            make_folder(path, 0o700)  # a user who may enter the old folder could stay in it
            new_mode = 0o755 if found is None and mode is None else mode
            set_attributes(path, stat.S_ISDIR, new_mode, uid, gid)
        return changed, "", ""
    if content is not None:
        before = text_to_show(path, found)
        if changed or before != content:
            if not check_mode:
                write_text(path, content, 0o644 if mode is None else mode, uid, gid)
            return True, before or "", content
        return False, before, content
    if found is None:
        return False, None, None
    if changed and not check_mode:
        set_attributes(path, stat.S_ISREG, mode, uid, gid)
    return changed, "", ""


def main() -> None:
    """Ansible's entry point."""
    options = {
        "path": {"type": "path", "required": True},
        "state": {"choices": ["file", "directory", "absent", "absent_if_empty"], "default": "file"},
        "content": {"type": "str"},
        "mode": {"type": "str"},
        "owner": {"type": "str", "default": ""},
        "group": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True, "options": options}
        },
        supports_check_mode=True,
    )
    os.umask(0o022)  # missing parents belong to root and are readable for all users
    changed_paths: list[str] = []
    diff: list[dict[str, str]] = []
    for entry in module.params["files"]:
        try:
            changed, before, after = settle(entry, module.check_mode)
        except (OSError, LookupError) as error:
            path = entry["path"]
            module.fail_json(
                msg=os_problem(error, path) if isinstance(error, OSError) else f"{path}: {error}",
                changed_paths=changed_paths,
                changed=bool(changed_paths),
            )
        if changed:
            # SELinux lets sshd read keys only in folders of the type ssh_home_t
            if entry["state"] == "directory" and not module.check_mode:
                module.set_default_selinux_context(entry["path"], True)
            changed_paths.append(entry["path"])
            diff.append(difference(entry["path"], before, after))
    module.exit_json(changed=bool(changed_paths), changed_paths=changed_paths, diff=diff)


if __name__ == "__main__":
    main()
