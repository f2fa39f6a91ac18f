# Apache-2.0 (see LICENSE)
"""File systems that an ordinary user has mounted: the user alone decides what they answer.

By fusermount every user may mount a FUSE file system on a folder that the user can write to. Where
/etc/fuse.conf has user_allow_other, root sees it too, and its files seem to belong to whomever it
names. The kernel names the user who has mounted it: `user_id` in /proc/self/mountinfo (proc(5)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

MOUNTS = Path("/proc/self/mountinfo")
NOBODY_KNOWS = -1  # the user of a mount that is gone, or that the kernel names none of
DETACH = 2  # MNT_DETACH of umount(2): also while it is in use
ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount.

    Attributes:
        number: id by which an open file's fdinfo names it.
        path: folder that it is mounted on.
        user: number of the user whose FUSE file system it is; None for all other file systems.
    """

    number: int
    path: str
    user: Optional[int]  # noqa: UP045 - evaluated by NamedTuple, on Python 3.8 too


def parse_mounts(text: str) -> list[Mount]:
    """Parse the text of mountinfo, without lines of another form: nobody knows whose those are."""
    parsed = []
    # by the two characters that the kernel escapes in names; a name may have all others
    for line in filter(None, text.split("\n")):
        fields = line.split(" ")
        try:
            end = fields.index("-", 6)  # of the optional fields
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
    """Return all mounts that this process could reach.

    Raises:
        OSError: there is no /proc.
    """
    # newline: a name may have a carriage return
    with MOUNTS.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return parse_mounts(file.read())


def mount_number(descriptor: int) -> int:
    """Return the id of the mount that an open file or folder is on."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    line = re.search(r"^mnt_id:\s*(\d+)$", text, re.MULTILINE)
    return int(line[1]) if line else NOBODY_KNOWS


def user_of_mount(descriptor: int) -> int | None:
    """Return the user whose FUSE file system an open file or folder is on; None if there is none.

    A mount that has been removed meanwhile is NOBODY_KNOWS's, because it may have been anyone's.
    """
    number = mount_number(descriptor)
    users = [mount.user for mount in mounts() if mount.number == number]
    return users[0] if users else NOBODY_KNOWS


def unmount(user: int) -> list[str]:
    """Unmount the FUSE file systems of a user, also those whose process has ended; returns paths.

    Call it after the user's processes have ended, which could exchange what is at a path.

    Raises:
        OSError: one cannot be unmounted; names it.
    """
    libc, removed, done = ctypes.CDLL(None, use_errno=True), [], set()
    while theirs := {mount.number: mount.path for mount in mounts() if mount.user == user}:
        path = next(iter(theirs.values()))  # with it go those inside of it
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            number = mount_number(descriptor)  # of the one on top, where there are several
            if number not in theirs or number in done:
                raise OSError(errno.EBUSY, "has a file system that cannot be unmounted", path)
            if libc.umount2(f"/proc/self/fd/{descriptor}".encode(), DETACH):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        finally:
            os.close(descriptor)
        done.add(number)
        removed.append(path)
    return removed
