#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The host's part of the action plugin of the same name: checks what arrived, and names it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push
short_description: Copies a folder to the hosts, once
description:
  - Streams the files of a folder of the control node, or one file, into a folder of the host, as
    the user that the task runs as, so that private data are never in a place that others can read.
    A file that is not for everybody to read or to run at home is not on the host either.
  - Links within the folder are followed. One that leads elsewhere is refused by its name, and so is
    a pipe, a socket or a device; a snapshot in the Hub's cache may lead to the blobs of its own
    repository.
  - The folder gets its name when it is whole and on the disk, its SHA-256 being that of what was
    sent. One that is there is left as it is, so let its name change with its contents.
  - Copies of the same folder at once do not meet before that. What broken-off ones have left beside
    it is removed once nothing was written into it for a day in which the host ran.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.from_action
options:
  source:
    description: The folder on the control node, or a file there.
    type: path
    required: true
  path:
    description: The folder on the host, taken as it is written.
    type: str
    required: true
  files:
    description: Names of the files in it that are copied; all of them by default.
    type: list
    elements: str
attributes:
  check_mode:
    description: Says whether it would be copied.
    support: full
"""

EXAMPLES = r"""
- name: Copy the data
  ftcluster.cluster.push:
    source: ./mrpc
    path: /opt/ftcluster/data/mrpc-4f7d1c0b2a9e
"""

RETURN = r"""
files:
  description: How many files were copied.
  returned: changed
  type: int
"""

import errno
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.stale import unchanged
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import file_sha256, tree_sha256

NEW = re.compile(r".+\.new-[0-9a-f]{8}")
STALE_SECONDS = 24 * 3600


def found_in(folder: Path) -> dict[bytes, bytes]:
    """The SHA-256 of each file below a folder, as `tree_sha256` takes them."""
    found = {}
    for where, _folders, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            found[os.fsencode(path.relative_to(folder))] = file_sha256(path).digest()
    return found


def finish(new: Path, path: Path, sha256: str) -> bool:
    """Check what arrived, have it on the disk, and give it its name; returns whether it got it.

    Raises:
        ValueError: it is not what was sent.
        OSError: it cannot be read, written to the disk or renamed.
    """
    new.chmod(0o700)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(to_disk, new)
        arrived = tree_sha256(found_in(new))  # while the disk writes
        written.result()
    if arrived != sha256:
        raise ValueError(
            f"what arrived has the sha256 {arrived}, what was sent {sha256}; run it again"
        )
    try:
        new.rename(path)
    except OSError:
        if not path.is_dir():
            raise
        return False  # another one was faster with the same
    return True


def to_disk(folder: Path) -> None:
    """Write a folder's file system to the disk."""
    # one call for thousands of files; fsync of each takes seconds
    argv = ["sync", "--file-system", str(folder)]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        words = os.fsdecode(done.stderr).strip()
        raise OSError(errno.EIO, words or "cannot be written to the disk", str(folder))


def remove_stale(folder: Path) -> None:
    """Remove what copies that were broken off have left in a folder."""
    left = [p for p in folder.iterdir() if NEW.fullmatch(p.name) and not p.is_symlink()]
    for path in unchanged(left, folder, STALE_SECONDS):
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Ansible's entry point; the action plugin calls it when all files were sent."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "path": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "str"},
            "from_action": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    sent, path = module.params["from_action"], Path(module.params["path"])
    new = Path(sent["new"])
    try:
        changed = finish(new, path, sent["sha256"])
        if not changed:
            shutil.rmtree(new, ignore_errors=True)
        remove_stale(path.parent)
    except ValueError as error:
        module.fail_json(msg=f"{path}: {error}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror or error}")
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
