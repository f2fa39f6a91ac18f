"""File systems that a less trusted user has mounted, which return what that user wants."""

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils import mounts
from ansible_collections.ftcluster.cluster.plugins.module_utils.given_python import given_python
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    RefusedPath,
    make_folder,
    read_text,
    refuse_unguarded,
    refuse_unowned,
    remove,
    write_text,
)
from ansible_collections.ftcluster.cluster.plugins.modules import setup_lock

from tests import fuse
from tests.unit.plugins.test_files import settled
from tests.unit.plugins.test_planted_links import (
    ACCOUNT,
    ASKS,
    STRANGER,
    _no_sudo,
    canary,
    home,
)

__all__ = ["_no_sudo", "canary", "home"]  # fixtures

pytestmark = pytest.mark.needs("root", "fuse")
OTHER = pwd.getpwnam("daemon")


def lies(canary: Path) -> fuse.Node:
    """Mount a folder in which all files claim to belong to root."""
    inner = {"link": fuse.link(canary), "file": fuse.link(canary / "shadow")}
    return fuse.folder({**inner, "deep": fuse.folder(inner)})


@pytest.mark.parametrize("where", ["home", "below", "covered"])
def test_a_link_that_seems_to_be_roots_is_not_followed(
    home: Path, canary: Path, where: str
) -> None:
    (home / "mount").mkdir()
    os.chown(home / "mount", 0 if where == "covered" else STRANGER.pw_uid, 0)
    place = home if where == "home" else home / "mount"
    with fuse.mounted(place, lies(canary), STRANGER.pw_uid):
        assert (place / "deep/link").lstat().st_uid == 0, "the kernel passes on the lie"
        assert (place / "link/shadow").read_text() == "root's", "and follows the link"
        for inside in (place, place / "deep"):
            for act in (
                lambda path: settled(path / "link", state="directory", **ACCOUNT),
                lambda path: settled(path / "file", content="x", **ACCOUNT),
                lambda path: settled(path / "file", **ACCOUNT),
                lambda path: settled(path / "link/shadow", state="absent"),
                lambda path: remove(path / "link/shadow"),
                lambda path: read_text(path / "file"),
                lambda path: write_text(path / "link/shadow", "x"),
                lambda path: make_folder(path / "link/new"),
            ):  # fmt: skip
                with pytest.raises(RefusedPath, match="nobody may have made"):
                    act(inside)
            with pytest.raises(RefusedPath, match="nobody may write here"):
                refuse_unguarded(inside / "link")


def test_roots_own_things_are_not_where_a_user_has_mounted_something(
    tmp_path: Path, canary: Path, run_module: Any
) -> None:
    """With the option `user` in /etc/fstab, a user can mount in root's folders."""
    place = tmp_path / "mount"
    place.mkdir()
    with fuse.mounted(place, lies(canary), STRANGER.pw_uid):
        refusal = run_module(setup_lock.main, prefix=str(place / "prefix"), from_action=ASKS)
        assert refusal["msg"] == (
            f"{place}: nobody may write here, and could replace what root installs; choose "
            f"another folder, or: sudo umount {place}"
        )
        with pytest.raises(RefusedPath, match="nobody may have made"):
            settled(place / "link", state="directory", **ACCOUNT)


@pytest.mark.parametrize("user", ["root", "sudo"])
def test_a_file_system_of_a_trusted_user_is_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setenv("SUDO_UID", str(OTHER.pw_uid))
    place, disk = tmp_path / "mount", tmp_path / "disk"
    place.mkdir()
    disk.mkdir()
    uid = 0 if user == "root" else OTHER.pw_uid
    with fuse.mounted(place, fuse.folder({"link": fuse.link(disk)}), uid):
        assert settled(place / "link/runs", state="directory", **ACCOUNT)
        refuse_unguarded(place)
    assert (disk / "runs").owner() == "nobody"


def test_a_file_that_a_user_has_mounted_is_not_roots(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    refuse_unowned(program)
    with fuse.mounted(program, fuse.file(b"#!/bin/sh\n"), STRANGER.pw_uid):
        state = program.stat()
        assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (0, 0o644)
        with pytest.raises(RefusedPath, match="users other than root may write to it"):
            refuse_unowned(program)


def test_a_python_that_imports_from_such_a_mount_is_refused(tmp_path: Path) -> None:
    program, site = tmp_path / "bin/python3", tmp_path / "lib/python3.11/site-packages"
    program.parent.mkdir()
    site.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho CPython 3.11.7 ''\n")
    program.chmod(0o755)

    def run(_: list[str]) -> tuple[int, str, str]:
        return 0, "CPython 3.11.7 \n", ""

    assert given_python(str(program), True, run) == "3.11.7"
    with fuse.mounted(site, fuse.folder({"a.py": fuse.file(b"")}), STRANGER.pw_uid):
        with pytest.raises(RefusedPath, match="nobody may change it") as caught:
            given_python(str(program), True, run)
        assert caught.value.hint.startswith(f"sudo umount {site}")


def test_a_mount_that_is_removed_while_it_is_looked_at_was_anyones(tmp_path: Path) -> None:
    with fuse.mounted(tmp_path, fuse.folder({}), 0):
        descriptor = os.open(tmp_path, os.O_PATH)
        try:
            assert mounts.user_of_mount(descriptor) == 0
            assert fuse.LIBC.umount2(os.fsencode(tmp_path), fuse.DETACH) == 0
            assert mounts.user_of_mount(descriptor) == mounts.NOBODY_KNOWS
        finally:
            os.close(descriptor)
    descriptor = os.open("/proc", os.O_PATH)
    assert mounts.user_of_mount(descriptor) is None
    os.close(descriptor)


NASTY = ["a b", "line\nbreak", "x - ext4 y rw", "\u2028\x85\r", "tab\there", "back\\040slash"]


def test_no_name_of_a_folder_hides_whose_mount_it_is(tmp_path: Path) -> None:
    for name in NASTY:
        place = tmp_path / f"{name} 1 2 0:9 - fuse z user_id=0"
        place.mkdir()
        with fuse.mounted(place, fuse.folder({}), STRANGER.pw_uid):
            theirs = [mount for mount in mounts.mounts() if mount.user == STRANGER.pw_uid]
            assert [mount.path for mount in theirs] == [str(place)]
            descriptor = os.open(place, os.O_PATH)
            assert mounts.user_of_mount(descriptor) == STRANGER.pw_uid
            os.close(descriptor)


def test_what_a_removed_account_has_mounted_is_unmounted(home: Path) -> None:
    """Even if the program that serves the file system is gone, which blocks any removal."""
    for name in ("other", "stacked"):
        (home / name).mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    (home / "dead").mkdir()
    fuse.mount(device, home / "dead", STRANGER.pw_uid)
    os.close(device)
    try:
        with pytest.raises(OSError, match="Transport endpoint"):
            remove(home / "dead")
        inner = fuse.folder({"inner": fuse.folder({})})
        with (
            fuse.mounted(home / "other", inner, STRANGER.pw_uid),
            fuse.mounted(home / "other/inner", fuse.folder({}), STRANGER.pw_uid),
            fuse.mounted(home / "stacked", fuse.folder({}), STRANGER.pw_uid),
            fuse.mounted(home / "stacked", fuse.folder({}), STRANGER.pw_uid),
        ):
            assert sorted(mounts.unmount(STRANGER.pw_uid)) == [
                str(home / "dead"),
                str(home / "other"),
                str(home / "stacked"),
                str(home / "stacked"),
            ]
    finally:
        fuse.LIBC.umount2(os.fsencode(home / "dead"), fuse.DETACH)
    assert mounts.unmount(STRANGER.pw_uid) == []
    remove(home)
    assert not home.exists()


def test_a_mount_that_another_one_covers_is_named_and_one_that_is_gone_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "folder/mount").mkdir(parents=True)
    inner = home / "folder/mount"
    with fuse.mounted(inner, fuse.folder({}), STRANGER.pw_uid):
        with (
            fuse.mounted(home / "folder", fuse.folder({}), OTHER.pw_uid),
            pytest.raises(OSError, match="hidden: unmount the file system that covers it") as error,
        ):
            mounts.unmount(STRANGER.pw_uid)
        assert error.value.filename == str(inner)
    answers = [[mounts.Mount(1, str(home / "gone"), STRANGER.pw_uid)], [], []]
    monkeypatch.setattr(mounts, "mounts", lambda: answers.pop(0))
    assert mounts.unmount(STRANGER.pw_uid) == []
