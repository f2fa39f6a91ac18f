# Apache-2.0 (see LICENSE)
"""POSIX access control lists (ACLs) of files and folders, as extended attributes.

An ACL grants rights to single users and groups, in addition to the mode. It survives a change of
owner or mode. A folder may also have a default ACL, which new files in the folder inherit. The
format is defined in the kernel: include/uapi/linux/posix_acl_xattr.h. This module does not use
setfacl, because a host may lack this program.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
VERSION = struct.Struct("<I")
ENTRY = struct.Struct("<HHI")  # tag, rights, id of a user or group
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
TAGS = (USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER)
WRITE = 2
WITHOUT = (errno.ENODATA, errno.ENOTSUP)  # no such ACL; file system without ACLs


class AclEntry(NamedTuple):
    """One line of an ACL.

    Attributes:
        tag: kind of entry, such as USER.
        rights: sum of 4 (read), 2 (write) and 1 (execute).
        number: user or group id; meaningless for tags other than USER and GROUP.
    """

    tag: int
    rights: int
    number: int


def parse_acl(value: bytes) -> list[AclEntry]:
    """Parse the value of an ACL's extended attribute.

    Raises:
        ValueError: the value is not in the kernel's format; a user's file system may return
            anything.
    """
    body = value[VERSION.size :]
    if value[: VERSION.size] != VERSION.pack(2) or len(body) % ENTRY.size:
        raise ValueError("the ACL is not in version 2 of the kernel's format")
    entries = [AclEntry(*fields) for fields in ENTRY.iter_unpack(body)]
    if any(entry.tag not in TAGS or entry.rights > 7 for entry in entries):
        raise ValueError("an entry of the ACL has an unknown tag or unknown rights")
    return entries


def lets_others_write(
    entries: Collection[AclEntry], is_trusted: Callable[[int], bool], groups: Collection[int]
) -> bool:
    """Return True if an ACL lets untrusted users or groups write.

    Args:
        entries: entries of the ACL.
        is_trusted: function that returns True if the user with an id is trusted.
        groups: ids of the groups that may write.

    >>> theirs = [
    ...     AclEntry(USER, 6, 1001),
    ...     AclEntry(GROUP_OBJ, 4, 0),
    ...     AclEntry(MASK, 6, 0),
    ... ]
    >>> lets_others_write(theirs, lambda uid: uid == 0, [0])
    True
    """
    mask = next((entry.rights for entry in entries if entry.tag == MASK), 7)
    return any(
        entry.rights & WRITE
        and (
            entry.tag == OTHER
            or (entry.tag == USER and mask & WRITE and not is_trusted(entry.number))
            or (entry.tag == GROUP and mask & WRITE and entry.number not in groups)
        )
        for entry in entries
    )


def acl_of(descriptor: int, name: str) -> bytes:
    """Return an ACL of an open file or folder, or b""; an O_PATH descriptor is enough."""
    try:
        return os.getxattr(f"/proc/self/fd/{descriptor}", name)
    except OSError as error:
        if error.errno in WITHOUT:
            return b""
        raise


def has_acl(descriptor: int) -> bool:
    """Return True if an open file or folder has an ACL of either kind."""
    return any(acl_of(descriptor, name) for name in (ACCESS, DEFAULT))


def remove_acl(descriptor: int) -> None:
    """Remove both ACLs of an open file or folder; an O_PATH descriptor is enough.

    The file's group keeps the rights that the ACL gives it. Otherwise the group would get the mask,
    the union of all rights in the ACL.
    """
    path = f"/proc/self/fd/{descriptor}"
    if acl_of(descriptor, DEFAULT):
        os.removexattr(path, DEFAULT)
    if value := acl_of(descriptor, ACCESS):
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.removexattr(path, ACCESS)
        os.chmod(path, mode & ~stat.S_IRWXG | (_group_rights(value) << 3))  # noqa: PTH101 - a name of the kernel's


def _group_rights(value: bytes) -> int:
    """Return the rights of a file's group in an ACL, or 0 if the ACL has another format."""
    try:
        rights = {entry.tag: entry.rights for entry in parse_acl(value)}
    except ValueError:
        return 0
    return rights.get(GROUP_OBJ, 0) & rights.get(MASK, 7)
