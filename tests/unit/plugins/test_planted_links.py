"""Links that a less trusted user plants in a folder in which root works."""

import contextlib
import os
import pwd
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils import safe_path
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    RefusedPath,
    read_text,
    remove,
    write_text,
)
from ansible_collections.ftcluster.cluster.plugins.modules import (
    environment,
    files,
    setup_lock,
    stack_link,
)

from tests.unit.plugins.test_files import settled

pytestmark = pytest.mark.needs("root")
STRANGER = pwd.getpwnam("nobody")
ASKS = {"owner": "a 1 1", "who": "a", "alive": [], "digest": ""}
ACCOUNT = {"owner": STRANGER.pw_name, "mode": "0700"}


def facts(path: Path) -> list[tuple[int, int, int, int, str]]:
    """Return owner, mode, names and text of a folder and everything in it."""
    found = []
    for one in [path, *sorted(path.rglob("*"))]:
        state = one.lstat()
        text = one.read_text() if one.is_file() else ""
        found.append((state.st_uid, state.st_gid, state.st_mode, state.st_size, one.name + text))
    return found


@pytest.fixture(autouse=True)
def _no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """Make a folder of root with a file; check at the end that both are unchanged."""
    folder = tmp_path / "canary"
    folder.mkdir(mode=0o755)
    (folder / "shadow").write_text("root's")
    (folder / "shadow").chmod(0o600)
    before = facts(folder)
    yield folder
    assert facts(folder) == before


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make the home of the training account."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    os.chown(folder, STRANGER.pw_uid, STRANGER.pw_gid)
    return folder


def plant(link: Path, target: Path, uid: int = STRANGER.pw_uid) -> None:
    link.symlink_to(target)
    os.chown(link, uid, uid, follow_symlinks=False)


# --- links


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("uid", [STRANGER.pw_uid, 0], ids=["his own", "moved there"])
def test_a_link_instead_of_a_folder_is_refused_by_name(
    home: Path, canary: Path, uid: int, check: bool
) -> None:
    plant(home / ".ssh", canary, uid)
    with pytest.raises(RefusedPath) as caught:
        settled(home / ".ssh", check, state="directory", **ACCOUNT)
    assert caught.value.filename == str(home / ".ssh")
    assert caught.value.strerror == (
        f"is a link to {canary} that nobody may have made, so it is not followed; remove it and "
        "run this again"
    )


def test_a_link_on_the_way_is_refused(home: Path, canary: Path, tmp_path: Path) -> None:
    plant(home / "runs", canary)
    for entry in (
        {"state": "directory", **ACCOUNT},
        {"content": "x", "mode": "0644", **ACCOUNT},
        {"state": "absent"},
    ):
        for name in ("new", "shadow"):
            with pytest.raises(RefusedPath, match="is a link to"):
                settled(home / "runs" / name, **entry)
    # such a link is not replaced, read or written either
    plant(home / "keys", canary / "shadow")
    with pytest.raises(RefusedPath):
        settled(home / "keys", content="mine", **ACCOUNT)
    with pytest.raises(RefusedPath):
        settled(home / "keys", **ACCOUNT)
    with pytest.raises(RefusedPath):
        read_text(home / "keys")
    plant(home / "hop", canary)
    plant(tmp_path / "roots", home / "hop", 0)
    with pytest.raises(RefusedPath) as caught:
        settled(tmp_path / "roots", state="directory", **ACCOUNT)
    assert caught.value.filename == str(home / "hop")


def test_nothing_below_his_folder_is_roots_again(home: Path, canary: Path, tmp_path: Path) -> None:
    """A user may have mounted a file system there that claims root as every file's owner."""
    (home / "deep/deeper").mkdir(parents=True)
    for folder in (home / "deep", home / "deep/deeper"):
        plant(folder / "link", canary, 0)
        with pytest.raises(RefusedPath, match="nobody may have made"):
            settled(folder / "link", state="directory", **ACCOUNT)
        with pytest.raises(RefusedPath, match="nobody may have made"):
            settled(folder / ".." / folder.name / "link/shadow", state="absent")
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    shared.chmod(0o777)
    plant(shared / "deep/link", canary, 0)
    with pytest.raises(RefusedPath, match="another user may have made"):
        settled(shared / "deep/link", state="directory", **ACCOUNT)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_link_where_others_may_write_is_refused(tmp_path: Path, canary: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, STRANGER.pw_gid)
    shared.chmod(mode)
    plant(shared / "link", canary, 0)
    with pytest.raises(RefusedPath, match="another user may have made"):
        settled(shared / "link", state="directory", **ACCOUNT)


def test_links_that_nobody_else_can_have_made_are_followed(tmp_path: Path) -> None:
    disk = tmp_path / "disk" / "far"
    disk.mkdir(parents=True)
    (tmp_path / "opt").symlink_to("disk")
    (tmp_path / "prefix").symlink_to(tmp_path / "opt" / ".." / "opt" / "far")
    (tmp_path / "dangling").symlink_to("disk/new")
    assert settled(tmp_path / "prefix" / "runs", state="directory", **ACCOUNT)
    assert (disk / "runs").owner() == "nobody"
    assert settled(tmp_path / "dangling" / "a", state="directory", mode="0755")
    assert (tmp_path / "disk" / "new" / "a").is_dir()
    (disk / "file").write_text("old")
    (tmp_path / "link").symlink_to(disk / "file")
    assert settled(tmp_path / "link", content="new")
    assert (tmp_path / "link").is_symlink()
    assert (disk / "file").read_text() == "new"


def test_who_became_root_by_sudo_may_have_links(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    plant(home / "prefix", tmp_path / "disk")
    monkeypatch.setenv("SUDO_UID", str(STRANGER.pw_uid))
    assert settled(home / "prefix" / "runs", state="directory", mode="0755")
    assert (tmp_path / "disk" / "runs").is_dir()


def test_an_ordinary_users_links_are_his_own_business() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # pytest's own folders are private
        folder = Path(name)
        os.chown(folder, STRANGER.pw_uid, STRANGER.pw_gid)
        folder.chmod(0o775)
        os.setegid(STRANGER.pw_gid)
        os.seteuid(STRANGER.pw_uid)
        try:
            (folder / "disk").mkdir()
            (folder / "prefix").symlink_to("disk")
            assert settled(folder / "prefix" / "runs", state="directory", mode="0700")
            assert settled(folder / "prefix" / "runs" / "a", content="x")
        finally:
            os.seteuid(0)
            os.setegid(0)
        assert (folder / "disk" / "runs" / "a").owner() == "nobody"


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        settled(tmp_path / "a" / "c", state="directory")


# --- other names, pipes


def test_a_file_of_several_names_is_not_given_away(home: Path, canary: Path) -> None:
    os.link(canary / "shadow", home / "mine")
    with pytest.raises(RefusedPath, match=r"is one of 2 hard links to a file"):
        settled(home / "mine", **ACCOUNT)
    # a new file replaces the name; the other name keeps the old file
    assert settled(home / "mine", content="new", **ACCOUNT)
    assert ((home / "mine").read_text(), (home / "mine").owner()) == ("new", "nobody")


def test_nothing_waits_for_a_pipe(home: Path) -> None:
    os.mkfifo(home / "pipe")
    for entry in ({"content": "x"}, {}):
        with pytest.raises(OSError, match=r"remove it|replaced"):
            settled(home / "pipe", **entry, **ACCOUNT)
    # a file that is too large to show is removed or replaced
    for name in ("mail", "job.json"):
        (home / name).touch()
        os.truncate(home / name, 10 << 30)
    large = {"path": str(home / "mail"), "state": "absent", "content": None}
    assert files.settle(large, False) == (True, "", "")
    assert settled(home / "job.json", content="{}", **ACCOUNT)
    assert (home / "job.json").read_text() == "{}"


# --- exchanged between the check and the change


def exchange(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Run a function at the moment after a name has been opened."""
    real, done = os.open, []

    def open_and_exchange(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        descriptor = real(path, flags, *rest, **more)
        if path == name and not done:
            done.append(True)
            act()
        return descriptor

    monkeypatch.setattr(safe_path.os, "open", open_and_exchange)


@pytest.mark.parametrize(
    "entry",
    [{"state": "directory"}, {"content": "x"}, {"state": "absent"}],
    ids=["folder", "file", "removal"],
)
def test_a_parent_that_is_exchanged_leads_nowhere_else(
    home: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    (home / "sub").mkdir()
    (home / "sub" / "shadow").write_text("his")

    def act() -> None:
        (home / "sub").rename(home / "away")
        plant(home / "sub", canary)

    exchange(monkeypatch, "sub", act)
    with contextlib.suppress(OSError):
        settled(home / "sub" / "shadow", **entry, **ACCOUNT)
    assert (home / "sub").is_symlink()


def test_an_end_that_is_exchanged_is_not_followed(
    home: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".ssh").mkdir()

    def act() -> None:
        (home / ".ssh").rename(home / "away")
        plant(home / ".ssh", canary)

    exchange(monkeypatch, ".ssh", act)
    with pytest.raises(OSError, match=r"\.ssh"):
        settled(home / ".ssh", state="directory", **ACCOUNT)


def test_a_race_is_never_won(home: Path, canary: Path) -> None:
    """Root writes and removes a path while a user alternates between a folder and a link there."""
    path, ended = home / "runs", threading.Event()

    def swap() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                path.mkdir()
                (path / "shadow").touch()
                path.rename(home / "away")
            with contextlib.suppress(OSError):
                plant(path, canary)
                path.unlink()
            with contextlib.suppress(OSError):
                (home / "away").rename(path)

    other = threading.Thread(target=swap)
    other.start()
    try:
        for _ in range(100):
            for entry in (path, path / "shadow"):
                with contextlib.suppress(OSError):
                    settled(entry, state="directory", **ACCOUNT)
        for _ in range(20):
            with contextlib.suppress(OSError):
                settled(path, state="absent")
    finally:
        ended.set()
        other.join()


# --- removal


def test_removal_takes_links_and_names_and_not_what_they_lead_to(home: Path, canary: Path) -> None:
    here = os.open(home, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert settled(home / "d", state="absent")
    assert list(home.iterdir()) == []
    tree = home / "runs"
    (tree / "a" / "b").mkdir(parents=True)
    plant(tree / "link", canary)
    plant(tree / "a" / "b" / "file", canary / "shadow")
    os.link(canary / "shadow", tree / "name")
    assert settled(tree, state="absent")
    assert not tree.exists()
    plant(home / "mesh", canary)
    assert settled(home / "mesh", state="absent")
    assert not os.path.lexists(home / "mesh")
    assert settled(home, state="absent")


def test_what_cannot_be_removed_is_named() -> None:
    with pytest.raises(OSError, match="cannot remove") as caught:
        remove("/proc/self/status")
    assert caught.value.filename == "/proc/self/status"


# --- root's own folders


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "refused"),
    [
        (0, 0, 0o755, ""),
        (0, 0, 0o775, ""),
        (0, STRANGER.pw_gid, 0o1777, ""),  # others cannot exchange root's files there
        (0, 0, 0o777, "chmod go-w"),
        (0, STRANGER.pw_gid, 0o775, "chmod go-w"),
        (STRANGER.pw_uid, 0, 0o755, "chown root"),
        (STRANGER.pw_uid, 0, 0o1777, "chown root"),
    ],
)
def test_root_keeps_nothing_of_its_own_where_others_could_exchange_it(
    tmp_path: Path, run_module: Any, uid: int, gid: int, mode: int, refused: str
) -> None:
    place = tmp_path / "place"
    (place / "prefix" / "stacks").mkdir(parents=True)
    os.chown(place, uid, gid)
    place.chmod(mode)
    prefix = str(place / "prefix")
    found = [
        run_module(setup_lock.main, prefix=prefix, from_action=ASKS),
        run_module(setup_lock.main, prefix=prefix, from_action=ASKS, check=True),
        run_module(stack_link.main, prefix=prefix, state="pruned"),
        run_module(environment.main, path=f"{prefix}/stacks/one"),
        run_module(files.main, files=[{"path": f"{prefix}/etc", "content": "x"}]),
        run_module(files.main, files=[{"path": f"{prefix}/a", "state": "directory",
                                       "owner": "root"}]),
    ]  # fmt: skip
    for result in found:
        if refused:
            assert result["msg"].startswith(f"{place}: "), result
            assert result["msg"].endswith(f"choose another folder, or: sudo {refused} {place}")
        else:
            assert not result.get("failed"), result
    assert (place / "prefix" / ".setup").exists() == (not refused)


def test_a_prefix_that_is_a_link_of_his_is_refused(
    home: Path, canary: Path, run_module: Any
) -> None:
    plant(home / "prefix", canary)
    refusal = run_module(setup_lock.main, prefix=str(home / "prefix"), from_action=ASKS)
    assert refusal["msg"].startswith(f"{home}: nobody may write here")


def test_the_lock_is_written_over_nothing_that_was_planted(tmp_path: Path, canary: Path) -> None:
    plant(tmp_path / ".setup.new", canary / "shadow")
    plant(tmp_path / ".setup", canary / "shadow")
    write_text(tmp_path / ".other", "x")
    assert setup_lock.take(tmp_path / "p" / ".setup", {"owner": "a"}, lambda _: True) is None
    with pytest.raises(RefusedPath):
        setup_lock.take(tmp_path / ".setup", {"owner": "a"}, lambda _: True)


def test_what_is_made_has_its_mode_from_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    real = os.fchmod

    def look(descriptor: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor, mode)

    monkeypatch.setattr(safe_path.os, "fchmod", look)
    settled(home / "secret", content="x", **ACCOUNT)
    assert modes == [0o600]


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    sparse, pipe, link = tmp_path / "sparse", tmp_path / "pipe", tmp_path / "link"
    sparse.touch()
    os.truncate(sparse, 10 << 30)
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path, why in ((sparse, "larger than 16 MiB"), (pipe, "regular"), (link, "regular")):
        with pytest.raises(RefusedPath, match=why):
            read_text(path)
