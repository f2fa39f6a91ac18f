#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Checks and renames received files on the host, for the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push
short_description: Copies a folder to a host that does not have it yet
description:
  - Streams the files of a folder of the control node, or one file, into a folder of the host, as
    the task's user, so that private data are never readable by others. If only some users may read
    or execute a file on the control node, the same is true on the host.
  - Links within the folder are followed. Links that lead elsewhere, pipes, sockets and devices are
    errors, and the message names them. A snapshot in the Hub's cache may contain links to the blobs
    of its repository.
  - The folder gets its final name once all files are on the disk and their SHA-256 is right. An
    existing folder is not changed, so its name should change with its contents.
  - Concurrent copies of the same folder do not interfere with each other. Leftovers of interrupted
    copies are removed if nothing was written into them for a day of the host's uptime.
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
    description: The folder on the host, used literally.
    type: str
    required: true
  files:
    description: Names of the files to copy. By default, all files are copied.
    type: list
    elements: str
attributes:
  check_mode:
    description: Reports if the folder would be copied.
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
  description: Number of copied files.
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
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.stale import unchanged
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import file_sha256, tree_sha256

NEW = re.compile(r".+\.new-[0-9a-f]{8}")
STALE_SECONDS = 24 * 3600


def found_in(folder: Path) -> dict[bytes, bytes]:
    """Return the SHA-256 of each file below a folder, as `tree_sha256` needs it."""
    found = {}
    for where, _folders, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            found[os.fsencode(path.relative_to(folder))] = file_sha256(path).digest()
    return found


def finish(new: Path, path: Path, sha256: str) -> bool:
    """Check, flush and rename the received files; return True if this call has renamed them.

    Raises:
        ValueError: the files differ from the files that the control node sent.
        OSError: the files cannot be read, written to the disk or renamed.
    """
    new.chmod(0o700)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(to_disk, new)
        arrived = tree_sha256(found_in(new))  # hash the files while the disk writes
        written.result()
    if arrived != sha256:
        raise ValueError(
            f"the SHA-256 of the received files is {arrived}, but that of the sent files is "
            f"{sha256}; run this again"
        )
    try:
        new.rename(path)
    except OSError:
        if not path.is_dir():
            raise
        return False  # another control node has already sent the same files
    return True


def to_disk(folder: Path) -> None:
    """Write a folder's file system to the disk."""
    # one call, because fsync of thousands of files would take seconds
    argv = ["sync", "--file-system", str(folder)]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        words = os.fsdecode(done.stderr).strip()
        raise OSError(errno.EIO, words or "cannot be written to the disk", str(folder))


def remove_stale(folder: Path) -> None:
    """Remove leftovers of interrupted copies from a folder."""
    left = [p for p in folder.iterdir() if NEW.fullmatch(p.name) and not p.is_symlink()]
    for path in unchanged(left, folder, STALE_SECONDS):
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Ansible's entry point; the action plugin runs the module after it has sent all files."""
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
        module.fail_json(msg=os_problem(error, path))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
