# Apache-2.0 (see LICENSE)
"""Changes files and folders by descriptor, never through links of a less trusted user.

Root sets up files of the training account: its home, keys and folders below the prefix. A link by
that account could lead root to any folder of the system. So each part of a path is opened relative
to the folder before it, without following links, and the last part is changed by descriptor:
exchanging a part meanwhile has no effect. A link is followed only if no other user can have made
it, because /var or the prefix may be a link to another disk.

Root trusts nothing below a folder that a less trusted user can write to, whatever its owner seems
to be: the user may have mounted a file system there that returns anything. The same holds below a
FUSE file system that such a user has mounted anywhere.

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
MOST_BYTES = 16 << 20  # the account's file could be endless, for example sparse
LINKS = 40  # the kernel's limit


class RefusedPath(OSError):
    """A path that a less trusted user may have exchanged."""

    def __init__(self, path: str | Path, what: str, hint: str) -> None:
        super().__init__(errno.EPERM, f"{what}; {hint}", str(path))
        self.what, self.hint = what, hint


def trusted(uid: int) -> bool:
    """Return True if a user has at least the rights of this process."""
    return uid in (0, os.geteuid()) or str(uid) == os.environ.get("SUDO_UID")


def user_name(uid: int) -> str:
    """Return a user's name, or its number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def writers(descriptor: int, state: os.stat_result, groups: Collection[int]) -> str:
    """Return the command that stops others from writing to a file or folder; "" if none may.

    Args:
        descriptor: the open file or folder; O_PATH is enough.
        state: os.fstat of the file or folder.
        groups: ids of the groups that may write, besides the owner.
    """
    if state.st_mode & stat.S_IWOTH or (
        state.st_mode & stat.S_IWGRP and state.st_gid not in groups
    ):
        return "chmod go-w"
    # the group's mode bits are the mask of an ACL: without them the ACL lets nobody write
    if state.st_mode & stat.S_IWGRP and _acl_lets_others_write(descriptor, ACCESS, groups):
        return "setfacl -b"
    return ""


def _acl_lets_others_write(descriptor: int, name: str, groups: Collection[int]) -> bool:
    value = acl_of(descriptor, name)
    try:
        return bool(value) and lets_others_write(parse_acl(value), trusted, groups)
    except ValueError:  # the users whom the ACL lets write are unknown
        return True


def mounted_by(descriptor: int, state: os.stat_result, device: int) -> str:
    """Return the less trusted user who has mounted an open file or folder; "" if none has.

    Args:
        state: os.fstat of the file or folder.
        device: device of the folder above, in which nobody else can have mounted something.
    """
    if state.st_dev == device:
        return ""
    user = user_of_mount(descriptor)
    return "" if user is None or trusted(user) else user_name(user)


def _stranger(descriptor: int, folder: os.stat_result, before: os.stat_result | None) -> str:
    """Return the less trusted user who controls the contents of a folder, as text; "" for none.

    Args:
        descriptor: descriptor of the folder.
        folder: os.fstat of the folder.
        before: os.fstat of the folder above; None for `/`.
    """
    if before is not None and (user := mounted_by(descriptor, folder, before.st_dev)):
        return user
    if not trusted(folder.st_uid):
        return user_name(folder.st_uid)
    # in a folder such as /tmp, others can exchange only their own files
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
    """Raise an error for a folder whose contents another user can exchange."""
    who, fix = "more users than root", ""
    if not trusted(folder.st_uid):
        who, fix = user_name(folder.st_uid), "chown root"
    elif not folder.st_mode & stat.S_ISVTX:
        fix = writers(descriptor, folder, (0,))
    if not fix and _acl_lets_others_write(descriptor, DEFAULT, (0,)):  # inherited by root's files
        fix = "setfacl -k"
    if stranger and not fix:  # the user has mounted it
        who, fix = stranger, "umount"
    if fix:
        raise RefusedPath(
            place,
            f"{who} may write here, and could exchange what root installs",
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
    """Yield the folder and the name, see opened_parent; the stack closes all descriptors."""

    def opened(name: str, folder: int | None = None) -> int:
        try:
            # without this flag the kernel does not mount autofs's mounts on demand
            descriptor = os.open(name, PATH_ONLY | os.O_DIRECTORY, dir_fd=folder)
        except NotADirectoryError:
            descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
        stack.callback(os.close, descriptor)
        return descriptor

    names, place, links = deque(Path(path).absolute().parts), Path("/"), 0
    strict = guarded or os.geteuid() == 0  # ordinary users have no rights that others lack
    stranger = ""  # the user who can have made everything below this folder
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
    """Open the folder of a path's last part; yield its descriptor and the name of that part.

    Args:
        path: a path whose last part may be missing.
        follow: True to follow a link that is the last part, to its target's folder.
        make: True to create missing folders on the way.
        guarded: True to reject a path that a less trusted user could change.

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
    """Raise an error if root would use a path whose contents a less trusted user could exchange."""
    if os.geteuid() == 0:
        with contextlib.suppress(FileNotFoundError), opened_parent(path, guarded=True):
            pass


def refuse_unowned(path: str | Path) -> None:
    """Raise an error if root would use a file that a less trusted user could exchange or write to.

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
    # nor does an ACL let anybody write if the mode has no right for the group
    if user or not trusted(state.st_uid) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedPath(path, "others than root may write to it", "run ftcluster setup")


def status(path: str | Path, follow: bool = True) -> os.stat_result | None:
    """Return the os.lstat of a path, or None if it does not exist."""
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
    """Return the text of a regular file, or None if it does not exist.

    Raises:
        RefusedPath: the path is no regular file, or is larger than any file of ftcluster.
    """
    try:
        with opened(path) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RefusedPath(path, "is not a regular file", AGAIN)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise RefusedPath(path, f"has more than {MOST_BYTES >> 20} MiB", AGAIN)
            return content.decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def difference(path: str | Path, before: str | None, after: str | None) -> dict[str, str]:
    """Return the difference that Ansible shows for a changed text; None means no file."""
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
    """Write a file atomically: under another name, synced and renamed."""
    with opened_parent(path) as (folder, name):
        temporary = f".ftcluster-{secrets.token_hex(8)}"
        descriptor = os.open(temporary, NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchown(descriptor, uid, gid)
                remove_acl(descriptor)  # the folder may have added an ACL
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
        # rm does not follow links either, and removes folders of any depth
        argv = ["rm", "-rf", "--one-file-system", "--", f"./{name}"]
        done = subprocess.run(
            argv, cwd=f"/proc/self/fd/{folder}", stderr=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            raise OSError(errno.EIO, os.fsdecode(done.stderr).strip().replace("\n", "; "))
