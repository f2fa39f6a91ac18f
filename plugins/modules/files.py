#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Several small text files and folders in one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: files
short_description: Several small text files and folders in one task
description:
  - Brings folders and small text files into the state described, in the order given.
  - Does in one round trip what M(ansible.builtin.file) and M(ansible.builtin.copy) need one or two
    for each of, which is most of the time of a run that finds nothing to do.
  - A file is replaced as a whole by renaming, so a reader sees the old text or the new one.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  files:
    description: What shall be there, or shall not.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The absolute path.
        type: path
        required: true
      state:
        description: C(absent) removes folders with all that is in them.
        type: str
        choices: [file, directory, absent]
        default: file
      content:
        description: The whole text of a file. Without it, a file that is there keeps its text.
        type: str
      mode:
        description: Permissions in octal digits, quoted.
        type: str
      owner:
        description: The user's name; empty, it is left as it is.
        type: str
        default: ""
      group:
        description: The group's name; empty, it is left as it is.
        type: str
        default: ""
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows the texts before and after.
    support: full
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
  description: The paths that were changed or would be.
  returned: success
  type: list
  elements: str
"""

import grp  # noqa: E402
import os  # noqa: E402
import pwd  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402


def text_of(path):
    """The text of a file, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path, text, mode):
    """Write a file under another name, sync and rename it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".ftcluster-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def remove(path):
    """Remove a file, a link or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def attributes_differ(path, entry):
    """Whether mode, owner or group are not as they shall be."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    if entry["mode"] and (found.st_mode & 0o7777) != int(entry["mode"], 8):
        return True
    try:
        if entry["owner"] and pwd.getpwnam(entry["owner"]).pw_uid != found.st_uid:
            return True
        if entry["group"] and grp.getgrnam(entry["group"]).gr_gid != found.st_gid:
            return True
    except KeyError:
        return True  # in check mode the account may not be there yet
    return False


def settle(entry, check_mode):
    """Bring one path into its state; returns (changed, text before, text after)."""
    path, state = Path(entry["path"]), entry["state"]
    if state == "absent":
        if not os.path.lexists(path):
            return False, None, None
        before = text_of(path) if path.is_file() else None
        if not check_mode:
            remove(path)
        return True, before or "", ""
    before = after = None
    changed = attributes_differ(path, entry)
    if state == "directory":
        changed = changed or not path.is_dir()
        if not check_mode and not path.is_dir():
            path.mkdir(mode=int(entry["mode"] or "0755", 8), parents=True)
    elif entry["content"] is not None:
        before, after = text_of(path), entry["content"]
        if before != after:
            changed = True
            if not check_mode:
                write(path, after, int(entry["mode"] or "0644", 8))
    elif not path.exists():
        return False, None, None
    if changed and not check_mode:
        if entry["owner"] or entry["group"]:
            shutil.chown(path, entry["owner"] or None, entry["group"] or None)
        if entry["mode"]:
            path.chmod(int(entry["mode"], 8))
    return changed, before or "", after or ""


def main():
    """Ansible's entry point."""
    options = {
        "path": {"type": "path", "required": True},
        "state": {"choices": ["file", "directory", "absent"], "default": "file"},
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
    changed_paths, diff = [], []
    for entry in module.params["files"]:
        try:
            changed, before, after = settle(entry, module.check_mode)
        except (OSError, LookupError) as error:
            module.fail_json(
                msg=f"{entry['path']}: {getattr(error, 'strerror', None) or error}",
                changed_paths=changed_paths,
                changed=bool(changed_paths),
            )
        if changed:
            changed_paths.append(entry["path"])
            diff.append(
                {
                    "before_header": entry["path"],
                    "after_header": entry["path"],
                    "before": before,
                    "after": after,
                }
            )
    module.exit_json(changed=bool(changed_paths), changed_paths=changed_paths, diff=diff)


if __name__ == "__main__":
    main()
