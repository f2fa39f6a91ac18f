# Apache-2.0 (see LICENSE)
"""Finds FUSE file systems that an ordinary user has mounted and therefore controls.

With fusermount, any user may mount a FUSE file system on a writable folder. If /etc/fuse.conf has
user_allow_other, root sees this file system too, and its files can claim any owner. The kernel
reports the user who mounted it: `user_id` in /proc/self/mountinfo (proc(5)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

MOUNTS = Path("/proc/self/mountinfo")
NOBODY_KNOWS = -1  # user of a mount that was removed, or for which the kernel reports no user
DETACH = 2  # MNT_DETACH of umount(2): unmount a file system even if it is in use
ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        number: mount id, as in an open file's fdinfo.
        path: mount point.
        user: id of the user who mounted a FUSE file system; None for all other file systems.
    """

    number: int
    path: str
    user: Optional[int]  # noqa: UP045 - evaluated by NamedTuple, on Python 3.8 too


def parse_mounts(text: str) -> list[Mount]:
    """Parse the text of mountinfo; skip lines of an unknown form."""
    parsed = []
    # split only at the two characters that the kernel escapes in names
    for line in filter(None, text.split("\n")):
        fields = line.split(" ")
        try:
            end = fields.index("-", 6)  # end of the optional fields
            kind, _source, options = fields[end + 1 : end + 4]
            number = int(fields[0])
        except ValueError:
            continue
        user = re.search(r"(?:^|,)user_id=(\d{1,10})(?:,|$)", options, re.ASCII)
        owner = int(user[1]) if user else NOBODY_KNOWS
        is_fuse = kind.partition(".")[0] in ("fuse", "fuseblk")
        path = ESCAPED.sub(lambda digits: chr(int(digits[1], 8)), fields[4])
        parsed.append(Mount(number, path, owner if is_fuse else None))
    return parsed


def mounts() -> list[Mount]:
    """Return all mounts that this process can see.

    Raises:
        OSError: there is no /proc.
    """
    # only newlines separate lines: a name may have a carriage return
    with MOUNTS.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return parse_mounts(file.read())


def mount_number(descriptor: int) -> int:
    """Return the id of the mount that an open file or folder is on."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    line = re.search(r"^mnt_id:\s*(\d+)$", text, re.MULTILINE)
    return int(line[1]) if line else NOBODY_KNOWS


def user_of_mount(descriptor: int) -> int | None:
    """Return the user who mounted the FUSE file system of an open file or folder, or None.

    If the mount was removed meanwhile, return NOBODY_KNOWS, because any user may have mounted it.
    """
    number = mount_number(descriptor)
    users = [mount.user for mount in mounts() if mount.number == number]
    return users[0] if users else NOBODY_KNOWS


def unmount(user: int) -> list[str]:
    """Unmount the FUSE file systems of a user; return the paths of their mount points.

    End the user's processes first, because they could replace the paths.

    Raises:
        OSError: a file system cannot be unmounted; the message names it.
    """
    libc, removed, done = ctypes.CDLL(None, use_errno=True), [], set()
    while theirs := {mount.number: mount.path for mount in mounts() if mount.user == user}:
        path = next(iter(theirs.values()))  # the kernel also unmounts mounts inside this mount
        try:
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if not theirs.keys() & {mount.number for mount in mounts() if mount.path == path}:
                continue  # the mount has ended meanwhile
            reason = "is mounted, but hidden: unmount the file system that covers it"
            raise OSError(errno.EBUSY, reason, path) from error
        try:
            number = mount_number(descriptor)  # the top mount, if several are on the path
            if number not in theirs or number in done:
                raise OSError(errno.EBUSY, "has a file system that cannot be unmounted", path)
            if libc.umount2(f"/proc/self/fd/{descriptor}".encode(), DETACH):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        finally:
            os.close(descriptor)
        done.add(number)
        removed.append(path)
    return removed
