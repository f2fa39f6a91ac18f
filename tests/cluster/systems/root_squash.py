"""A file system that behaves like NFS with root_squash: `root_squash.py FOLDER MOUNTPOINT`.

It runs on a host with the host's Python and Debian's python3-fusepy, because the hosts' kernel has
no NFS. Like such a server, it executes each call with the caller's user and groups, and root
becomes nobody. Root's rights on the host have no effect.
"""

# ruff: noqa: ARG002, PTH104, PTH208, PTH211 - the methods' names and arguments are a file system's

import ctypes
import functools
import os
import pwd
import sys
from errno import EACCES
from pathlib import Path

from fusepy import FUSE, FuseOSError, Operations, fuse_get_context

NOBODY = 65534
libc = ctypes.CDLL(None)


@functools.cache
def groups_of(uid, gid):
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


class Squashed(Operations):
    """A file system that forwards the calls to another folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, operation, path, *args):
        if operation in ("init", "destroy"):
            return None
        uid, gid, _ = fuse_get_context()
        if uid == 0:
            uid, gid = NOBODY, NOBODY
        os.setgroups(groups_of(uid, gid))
        libc.setfsgid(gid)
        libc.setfsuid(uid)
        try:
            return getattr(self, operation)(self.folder + path, *args)
        except OSError as error:
            raise FuseOSError(error.errno) from None
        finally:
            libc.setfsuid(0)
            libc.setfsgid(0)

    def access(self, path, mode):
        found = os.lstat(path)
        uid, gid, _ = fuse_get_context()
        uid, gids = (NOBODY, {NOBODY}) if uid == 0 else (uid, {gid, *os.getgroups()})
        bits = found.st_mode >> (6 if found.st_uid == uid else 3 if found.st_gid in gids else 0)
        if mode & ~bits & 7:
            raise FuseOSError(EACCES)

    def getattr(self, path, fh=None):
        found = os.fstat(fh) if fh is not None else os.lstat(path)
        names = ("atime", "ctime", "gid", "mode", "mtime", "nlink", "size", "uid")
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(path)]

    def symlink(self, path, target):
        os.symlink(target, path)

    def link(self, path, source):
        os.link(self.folder + source, path)

    def rename(self, path, new):
        os.rename(path, self.folder + new)

    def chown(self, path, uid, gid):
        os.chown(path, uid, gid, follow_symlinks=False)

    readlink = staticmethod(os.readlink)
    mkdir, rmdir = staticmethod(os.mkdir), staticmethod(os.rmdir)
    unlink, chmod = staticmethod(os.unlink), staticmethod(os.chmod)

    def utimens(self, path, times=None):
        os.utime(path, times)

    def statfs(self, path):
        found = os.statvfs(path)
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "frsize")
        return {f"f_{name}": getattr(found, f"f_{name}") for name in (*names, "namemax")}

    def open(self, path, flags):
        return os.open(path, flags & ~os.O_APPEND)

    def create(self, path, mode, fi=None):
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(path if fh is None else fh, length)

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)


if __name__ == "__main__":
    folder, place = map(str, map(Path, sys.argv[1:]))
    os.umask(0)
    FUSE(Squashed(folder), place, foreground=True, nothreads=True, allow_other=True,
         big_writes=True, attr_timeout=0, entry_timeout=0, negative_timeout=0)  # fmt: skip
