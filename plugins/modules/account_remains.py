#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ends the processes of an account and removes its files outside of its home."""

from __future__ import annotations

DOCUMENTATION = r"""
module: account_remains
short_description: Ends an account's processes and removes its files outside of its home
description:
  - Removes the account's timed jobs (cron and at) and its lingering, ends its processes, unmounts
    the FUSE file systems that it has mounted, and removes its temporary files, shared memory,
    message queues and semaphores. The account itself, its home and its mail stay.
  - Run this before an account is removed, because the next account with the same user id would own
    the files.
  - Jobs are removed before the processes end, because jobs start processes, and again afterwards,
    because ending processes may add jobs. Processes get SIGTERM, and after 5 seconds SIGKILL.
  - Files are removed by name and links are never followed, even if the account exchanges them.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  name:
    description: The account's name.
    type: str
    required: true
  uid:
    description: The account's user id, which identifies its files and processes. Root's user id is
        an error.
    type: int
    required: true
attributes:
  check_mode:
    description: Changes nothing, and does not report changes.
    support: partial
    details: An account's files change all the time, so they are only searched during removal.
"""

EXAMPLES = r"""
- name: End the account's processes and remove its temporary files
  ftcluster.cluster.account_remains:
    name: ftcluster
    uid: 998
  become: true
"""

RETURN = r"""
removed:
  description: Removed files and ended processes.
  returned: success
  type: list
  elements: str
  sample: [its processes, /tmp/torchinductor_ftcluster]
left:
  description: Folders of the account that could not be removed because of other users' files.
  returned: success
  type: list
  elements: str
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.mounts import unmount

# folders of files with the account's name
JOBS = ("/var/spool/cron/crontabs", "/var/spool/cron", "/var/lib/systemd/linger")
AT_JOBS = ("/var/spool/cron/atjobs", "/var/spool/at")  # files that the account owns
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
SHARED = {"shm": "-m", "msg": "-q", "sem": "-s"}  # tables of /proc/sysvipc, options of ipcrm
SECONDS_TO_END = 5
ENDED = (["Z"], ["X"])  # zombie and dead, see State in proc_pid_status(5)


def remove_jobs(name: str, uid: int) -> list[str]:
    """Remove the account's timed jobs and its lingering (systemd); return the removed paths."""
    removed = []
    for path in (Path(folder, name) for folder in JOBS):
        if path.is_file() and not path.is_symlink():
            path.unlink()
            removed.append(str(path))
    for folder in filter(os.path.isdir, AT_JOBS):
        removed += find(folder, "-xdev", "-type", "f", "-uid", str(uid), "-delete", "-print")
    return removed


def processes(uid: int) -> list[int]:
    """Return the ids of the running processes with this real user id.

    Zombies are not counted, because they use no resources. pgrep is not used, because hosts may
    lack it.
    """
    pids = []
    # do not use the pattern [0-9]*/status: glob fails if a process ends meanwhile
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # the process has ended
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        if status.get("Uid", ())[:1] == [str(uid)] and status.get("State", ())[:1] not in ENDED:
            pids.append(int(folder.name))
    return pids


def end(uid: int, number: int) -> None:
    """Send a signal to all processes of a user."""
    for pid in processes(uid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end_processes(name: str, uid: int) -> list[str]:
    """End the account's processes, and remove jobs that they add; return the removed items.

    Raises:
        OSError: processes do not end.
    """
    if not processes(uid):
        return []
    removed = ["its processes"]
    end(uid, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_END
    while processes(uid) and time.monotonic() < deadline:
        time.sleep(0.2)
    for _round in range(SECONDS_TO_END):
        if processes(uid):
            end(uid, signal.SIGKILL)
            time.sleep(0.5)
        removed += remove_jobs(name, uid)
        left = processes(uid)
        if not left:
            return removed
    raise OSError(f"processes of {name} do not end: {', '.join(map(str, left))}")


def remove_temporary(uid: int) -> tuple[list[str], list[str]]:
    """Remove the account's files in world-writable folders; return (removed paths, kept paths)."""
    removed, left = [], []
    for folder in filter(os.path.isdir, TEMPORARY):
        wanted = ("-xdev", "-mindepth", "1", "-depth", "-uid", str(uid))
        removed += find(folder, *wanted, "-delete", "-print")
        left += find(folder, *wanted, "-print")
    return removed, left


def remove_shared(uid: int) -> list[str]:
    """Remove the account's shared memory, queues and semaphores; return their tables and ids."""
    removed = []
    for kind, option in SHARED.items():
        table = Path("/proc/sysvipc", kind)
        if not table.is_file():
            continue
        names, *rows = (line.split() for line in table.read_text(encoding="ascii").splitlines())
        for row in rows:
            if row[names.index("uid")] == str(uid):
                subprocess.run(["ipcrm", option, row[1]], check=False)
                removed.append(f"{table} {row[1]}")
    return removed


def find(folder: str, *arguments: str) -> list[str]:
    """Run find in a folder and return its lines; find follows no links. Ignore errors."""
    argv = ["find", "-P", folder, *arguments]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return os.fsdecode(done.stdout).splitlines()


def remove_remains(name: str, uid: int) -> tuple[list[str], list[str]]:
    """Remove all remains of the account; return (removed items, kept items).

    Raises:
        OSError: processes do not end, or a job or a file system cannot be removed.
    """
    removed = [*remove_jobs(name, uid), *end_processes(name, uid), *unmount(uid)]
    temporary, left = remove_temporary(uid)
    return [*removed, *temporary, *remove_shared(uid)], left


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "uid": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    name, uid = module.params["name"], module.params["uid"]
    if uid <= 0 or "/" in name:
        module.fail_json(
            msg=f"{name!r} with the user id {uid} is not an account that may be removed"
        )
    if module.check_mode:
        module.exit_json(changed=False, removed=[], left=[])
    try:
        removed, left = remove_remains(name, uid)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        module.fail_json(msg=f"{place}{error.strerror or error}")
    module.exit_json(changed=bool(removed), removed=removed, left=left)


if __name__ == "__main__":
    main()
