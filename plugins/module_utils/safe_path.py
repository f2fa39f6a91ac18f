# Apache-2.0 (see LICENSE)
"""Changes files and folders without following links of a less trusted user.

Root sets up files of the training account: its home, keys and folders below the prefix. If this
account made a link, the link could lead root to any folder of the system. Therefore each part of a
path is opened relative to the previous folder, without following links. The last part is changed by
descriptor, so that replacing a part meanwhile has no effect. A link is followed only if no less
trusted user can have made it: /var or the prefix may be a link to another disk.

Root trusts nothing below a folder that a less trusted user can write to, even if the files seem to
belong to root: the user may have mounted a file system there that returns any owner. Likewise, root
trusts nothing below a FUSE file system that such a user has mounted.

Trusted users are root, the current user, and the user who ran sudo. Every function raises OSErrors
with the whole path as filename.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import stat
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import (
    ACCESS,
    DEFAULT,
    acl_of,
    lets_others_write,
    parse_acl,
    remove_acl,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.mounts import user_of_mount

PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # do not wait for a pipe's writer
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
AGAIN = "remove it and run this again"
MOST_BYTES = 16 << 20  # a file of the account may be huge, for example sparse
LINKS = 40  # maximum number of links in a path, as in the kernel


class RefusedPath(OSError):
    """A path that a less trusted user may have replaced."""

    def __init__(self, path: str | Path, what: str, hint: str) -> None:
        super().__init__(errno.EPERM, f"{what}; {hint}", str(path))
        self.what, self.hint = what, hint


def trusted(uid: int) -> bool:
    """Return True if a user has at least the rights of this process."""
    return uid in (0, os.geteuid()) or str(uid) == os.environ.get("SUDO_UID")


def user_name(uid: int) -> str:
    """Return a user's name, or the user id if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def writers(descriptor: int, state: os.stat_result, groups: Collection[int]) -> str:
    """Return the command that removes other users' write permission, or "" if they have none.

    Args:
        descriptor: the open file or folder; O_PATH is enough.
        state: os.fstat of the file or folder.
        groups: ids of the groups that may write, in addition to the owner.
    """
    if state.st_mode & stat.S_IWOTH or (
        state.st_mode & stat.S_IWGRP and state.st_gid not in groups
    ):
        return "chmod go-w"
    # the mode's group bits are the mask of an ACL: without `w` in it, the ACL lets nobody write
    if state.st_mode & stat.S_IWGRP and _acl_lets_others_write(descriptor, ACCESS, groups):
        return "setfacl -b"
    return ""


def _acl_lets_others_write(descriptor: int, name: str, groups: Collection[int]) -> bool:
    value = acl_of(descriptor, name)
    try:
        return bool(value) and lets_others_write(parse_acl(value), trusted, groups)
    except ValueError:  # it is unknown which users may write
        return True


def mounted_by(descriptor: int, state: os.stat_result, device: int) -> str:
    """Return the less trusted user who has mounted an open file or folder; "" if none has.

    Args:
        state: os.fstat of the file or folder.
        device: device of the folder above; less trusted users have mounted nothing on that folder.
    """
    if state.st_dev == device:
        return ""
    user = user_of_mount(descriptor)
    return "" if user is None or trusted(user) else user_name(user)


def _stranger(descriptor: int, folder: os.stat_result, before: os.stat_result | None) -> str:
    """Return the name of a less trusted user who controls the contents of a folder, or "".

    Args:
        descriptor: descriptor of the folder.
        folder: os.fstat of the folder.
        before: os.fstat of the folder above; None for `/`.
    """
    if before is not None and (user := mounted_by(descriptor, folder, before.st_dev)):
        return user
    if not trusted(folder.st_uid):
        return user_name(folder.st_uid)
    # in a folder such as /tmp, other users can replace only their own files
    if not folder.st_mode & stat.S_ISVTX and writers(descriptor, folder, (0, os.getegid())):
        return "another user"
    return ""


def _check_link(place: Path, target: str, link: os.stat_result, folder: int, stranger: str) -> None:
    """Raise an error for a link that another user may have made or moved there."""
    state = os.fstat(folder)
    strangers = [user_name(uid) for uid in (link.st_uid, state.st_uid) if not trusted(uid)]
    if not (strangers or stranger or writers(folder, state, (0, os.getegid()))):
        return
    raise RefusedPath(
        place,
        f"is a link to {target} that {[*strangers, stranger or 'another user'][0]} may have made, "
        "so it is not followed",
        AGAIN,
    )


def _check_guarded(place: Path, descriptor: int, folder: os.stat_result, stranger: str) -> None:
    """Raise an error for a folder whose contents another user can replace."""
    who, fix = "users other than root", ""
    if not trusted(folder.st_uid):
        who, fix = user_name(folder.st_uid), "chown root"
    elif not folder.st_mode & stat.S_ISVTX:
        fix = writers(descriptor, folder, (0,))
    if not fix and _acl_lets_others_write(descriptor, DEFAULT, (0,)):  # root's new files inherit it
        fix = "setfacl -k"
    if stranger and not fix:  # the user has mounted it
        who, fix = stranger, "umount"
    if fix:
        raise RefusedPath(
            place,
            f"{who} may write here, and could replace what root installs",
            f"choose another folder, or: sudo {fix} {place}",
        )


def _made_folder(name: str, folder: int, opened: Callable[[str, int], int]) -> int:
    """Create and open a folder that does not inherit access for others."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return opened(name, folder)
    made = opened(name, folder)
    if stat.S_ISDIR(os.fstat(made).st_mode):
        remove_acl(made)
    return made


def _walk(
    stack: contextlib.ExitStack, path: str | Path, follow: bool, make: bool, guarded: bool
) -> tuple[int, str]:
    """Return the folder and the name as in opened_parent; the stack closes all descriptors."""

    def opened(name: str, folder: int | None = None) -> int:
        try:
            # without O_DIRECTORY, the kernel does not mount autofs file systems
            descriptor = os.open(name, PATH_ONLY | os.O_DIRECTORY, dir_fd=folder)
        except NotADirectoryError:
            descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
        stack.callback(os.close, descriptor)
        return descriptor

    names, place, links = deque(Path(path).absolute().parts), Path("/"), 0
    strict = guarded or os.geteuid() == 0  # an ordinary user has no special rights
    stranger = ""  # user who may have created everything below this folder
    folder = opened("/")
    while True:
        name = names.popleft()
        try:
            found = opened(name, folder)
        except FileNotFoundError:
            if not names:
                return folder, name
            if not make:
                raise
            found = _made_folder(name, folder, opened)
        state = os.fstat(found)
        if stat.S_ISLNK(state.st_mode) and (names or follow):
            target = os.readlink("", dir_fd=found)
            _check_link(place / name, target, state, folder, stranger)
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            names.extendleft(reversed(Path(target).parts or (".",)))
            continue
        if stat.S_ISDIR(state.st_mode):
            before = None if name == "/" else os.fstat(folder)
            if strict:
                stranger = stranger or _stranger(found, state, before)
            if guarded:
                _check_guarded(place / name, found, state, stranger)
        if not names:
            return folder, name
        folder, place = found, place / name


@contextlib.contextmanager
def opened_parent(
    path: str | Path, follow: bool = True, make: bool = False, guarded: bool = False
) -> Iterator[tuple[int, str]]:
    """Open the folder that contains the path; yield its descriptor and the path's last part.

    Args:
        path: a path whose last part may be missing.
        follow: True to follow a link in the last part; the yielded folder then contains the target.
        make: True to create missing folders of the path.
        guarded: True to reject a path if a less trusted user could replace a part of it.

    Raises:
        RefusedPath: the path is unsafe; the message names the part, its owner and what to do.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield _walk(stack, path, follow, make, guarded)
    except RefusedPath:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def refuse_unguarded(path: str | Path) -> None:
    """Raise an error if a less trusted user could replace the contents of a path."""
    if os.geteuid() == 0:
        with contextlib.suppress(FileNotFoundError), opened_parent(path, guarded=True):
            pass


def refuse_unowned(path: str | Path) -> None:
    """Raise an error if a less trusted user could replace a file or write to it.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if os.geteuid() != 0:
        return
    with opened_parent(path, guarded=True) as (folder, name):
        descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
        try:
            state = os.fstat(descriptor)
            user = mounted_by(descriptor, state, os.fstat(folder).st_dev)
        finally:
            os.close(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise RefusedPath(path, "is not a regular file", AGAIN)
    # if the mode gives the group no write permission, an ACL lets nobody write either
    if user or not trusted(state.st_uid) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedPath(path, "users other than root may write to it", "run ftcluster setup")


def status(path: str | Path, follow: bool = True) -> os.stat_result | None:
    """Return the result of os.lstat, or os.stat with `follow`; None if the path does not exist."""
    try:
        with opened_parent(path, follow) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[int]:
    """Open a file or folder for reading and for changing its owner and mode."""
    with opened_parent(path) as (folder, name):
        descriptor = os.open(name, READ, dir_fd=folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def read_text(path: str | Path) -> str | None:
    """Return the text of a regular file, or None if the file does not exist.

    Raises:
        RefusedPath: the path is not a regular file, or is larger than any file of ftcluster.
    """
    try:
        with opened(path) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RefusedPath(path, "is not a regular file", AGAIN)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise RefusedPath(path, f"is larger than {MOST_BYTES >> 20} MiB", AGAIN)
            return content.decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def difference(path: str | Path, before: str | None, after: str | None) -> dict[str, str]:
    """Return the difference that Ansible shows for a changed file; None stands for no file."""
    name = str(path)
    texts = {"before": before or "", "after": after or ""}
    return {"before_header": name, "after_header": name, **texts}


def make_folder(path: str | Path, mode: int = 0o755) -> None:
    """Create a folder and missing folders above it."""
    with opened_parent(path, make=True) as (folder, name):
        try:
            os.mkdir(name, mode, dir_fd=folder)
        except FileExistsError:
            os.close(os.open(name, PATH_ONLY | os.O_DIRECTORY, dir_fd=folder))
        else:
            descriptor = os.open(name, PATH_ONLY | os.O_DIRECTORY, dir_fd=folder)
            try:
                remove_acl(descriptor)
            finally:
                os.close(descriptor)


def write_text(
    path: str | Path, text: str, mode: int = 0o600, uid: int = -1, gid: int = -1
) -> None:
    """Write a file atomically: write and sync a new file, then rename it."""
    with opened_parent(path) as (folder, name):
        temporary = f".ftcluster-{secrets.token_hex(8)}"
        descriptor = os.open(temporary, NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchown(descriptor, uid, gid)
                remove_acl(descriptor)  # the file may have inherited an ACL from the folder
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise


def remove(path: str | Path) -> None:
    """Remove a file, a link, or a folder with its contents on the same file system."""
    with opened_parent(path, follow=False) as (folder, name):
        # rm does not follow links, and removes folders of any depth
        argv = ["rm", "-rf", "--one-file-system", "--", f"./{name}"]
        done = subprocess.run(
            argv, cwd=f"/proc/self/fd/{folder}", stderr=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            raise OSError(errno.EIO, os.fsdecode(done.stderr).strip().replace("\n", "; "))
