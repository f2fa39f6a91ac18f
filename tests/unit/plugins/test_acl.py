"""Access control lists, compared with the access that the kernel grants."""

import contextlib
import os
import pwd
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import (
    ACCESS,
    DEFAULT,
    AclEntry,
    has_acl,
    parse_acl,
    remove_acl,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.given_python import given_python
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    RefusedPath,
    make_folder,
    refuse_unguarded,
    write_text,
    writers,
)
from ansible_collections.ftcluster.cluster.plugins.modules import (
    environment,
    files,
    give_to_root,
    run_folder,
    setup_lock,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plugins.test_files import mode, settled
from tests.unit.plugins.test_planted_links import ACCOUNT, ASKS

pytestmark = pytest.mark.needs("root")
STRANGER = pwd.getpwnam("nobody")
OTHER = pwd.getpwnam("daemon")
NUMBERLESS = 0xFFFFFFFF
READS_ALL, WRITES_ALL = 5, 7


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return the attribute's value, packed as defined in the kernel's header."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def for_user(uid: int, rights: int, mask: int = 7) -> bytes:
    return acl((1, 7, NUMBERLESS), (2, rights, uid), (4, 5, NUMBERLESS), (16, mask, NUMBERLESS),
               (32, 5, NUMBERLESS))  # fmt: skip


def plant(path: Path, value: bytes, *names: str) -> None:
    for name in names or (ACCESS, DEFAULT) if path.is_dir() else (ACCESS,):
        os.setxattr(path, name, value)


def lists_of(path: Path) -> list[str]:
    return sorted(name for name in os.listxattr(path) if "acl" in name)


@contextlib.contextmanager
def as_user(entry: pwd.struct_passwd, *groups: int) -> Iterator[None]:
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """Yield a folder that other users reach, because pytest's own folders are private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def can_write(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        return False
    return True


rights = st.integers(0, 7)


@st.composite
def lists(draw: st.DrawFn) -> bytes:
    users = draw(st.dictionaries(st.sampled_from([0, STRANGER.pw_uid, OTHER.pw_uid]), rights))
    groups = draw(st.dictionaries(st.sampled_from([0, STRANGER.pw_gid, OTHER.pw_gid]), rights))
    mask = [(16, draw(rights), NUMBERLESS)] if users or groups or draw(st.booleans()) else []
    return acl(
        (1, draw(rights), NUMBERLESS),
        *((2, users[uid], uid) for uid in sorted(users)),
        (4, draw(rights), NUMBERLESS),
        *((8, groups[gid], gid) for gid in sorted(groups)),
        *mask,
        (32, draw(rights), NUMBERLESS),
    )


@settings(deadline=None)
@given(lists(), st.sampled_from([0, STRANGER.pw_gid]))
def test_whom_the_kernel_lets_write_may_write(open_folder: Path, value: bytes, gid: int) -> None:
    path = open_folder / "file"
    path.unlink(missing_ok=True)
    path.touch()
    os.chown(path, 0, gid)
    os.setxattr(path, ACCESS, value)
    descriptor = os.open(path, os.O_PATH)
    try:
        fix = writers(descriptor, os.fstat(descriptor), (0,))
        for user in (STRANGER, OTHER):
            with as_user(user):
                assert fix or not can_write(path), (parse_acl(value), user.pw_name)
        if fix == "setfacl -b":
            assert has_acl(descriptor)
        remove_acl(descriptor)
        assert not has_acl(descriptor)
        # the removal has granted nobody a right
        allowed = {entry.tag: entry.rights for entry in parse_acl(value) if entry.tag in (1, 4, 32)}
        permissions = stat.S_IMODE(os.fstat(descriptor).st_mode)
        for tag, shift in ((1, 6), (4, 3), (32, 0)):
            assert (permissions >> shift & 7) & ~allowed[tag] == 0
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "value", [b"", b"\2", b"\1\0\0\0", acl((1, 7, 0))[:-1], acl((3, 7, 0)), acl((1, 8, 0))]
)
def test_other_bytes_are_no_list(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"format|unknown"):
        parse_acl(value)


def test_a_list_is_read_as_setfacl_writes_it() -> None:
    """Parse a list written by `setfacl -m u:1001:rw,g:1002:r FILE` of acl 2.3.1."""
    value = (
        "02000000 01000600ffffffff 02000600e9030000 04000400ffffffff 08000400ea030000 "
        "10000600ffffffff 20000400ffffffff"
    )
    assert parse_acl(bytes.fromhex(value))[1:4] == [
        AclEntry(2, 6, 1001), AclEntry(4, 4, NUMBERLESS), AclEntry(8, 4, 1002),
    ]  # fmt: skip


# --- root does not use what others can write to


@pytest.mark.parametrize(
    ("value", "names", "fix"),
    [
        (for_user(STRANGER.pw_uid, WRITES_ALL), [ACCESS], "setfacl -b"),
        (for_user(STRANGER.pw_uid, WRITES_ALL), [DEFAULT], "setfacl -k"),
        (for_user(STRANGER.pw_uid, READS_ALL), [ACCESS, DEFAULT], ""),
        (for_user(STRANGER.pw_uid, WRITES_ALL, mask=5), [ACCESS, DEFAULT], ""),
        (for_user(0, WRITES_ALL), [ACCESS, DEFAULT], ""),
    ],
    ids=["access", "default", "only to read", "masked", "root's"],
)
def test_a_prefix_that_others_may_write_to_by_a_list_is_refused(
    tmp_path: Path, run_module: Any, value: bytes, names: list[str], fix: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    plant(place, value, *names)
    assert stat.S_IMODE(place.stat().st_mode) in (0o755, 0o775)
    for result in (
        run_module(setup_lock.main, prefix=str(place / "prefix"), from_action=ASKS),
        run_module(files.main, files=[{"path": f"{place}/etc", "content": "x"}]),
        run_module(environment.main, path=f"{place}/stacks/one"),
    ):
        if not fix:
            assert not result.get("failed"), result
            continue
        assert result["msg"] == (
            f"{place}: users other than root may write here, and could replace what root installs; "
            f"choose another folder, or: sudo {fix} {place}"
        )
    place.chmod(0o1777)
    if names == [DEFAULT] and fix:
        with pytest.raises(RefusedPath):
            refuse_unguarded(place / "x")


def test_a_link_in_a_folder_that_others_may_write_to_by_a_list(tmp_path: Path) -> None:
    shared, disk = tmp_path / "shared", tmp_path / "disk"
    (shared / "deep").mkdir(parents=True)
    disk.mkdir()
    for folder in (shared, shared / "deep"):
        (folder / "link").symlink_to(disk)
        assert settled(folder / "link/a", state="directory", **ACCOUNT)
        (disk / "a").rmdir()
    plant(shared, for_user(STRANGER.pw_uid, WRITES_ALL), ACCESS)
    for folder in (shared, shared / "deep"):
        with pytest.raises(RefusedPath, match="another user may have made"):
            settled(folder / "link/a", state="directory", **ACCOUNT)


def test_a_python_that_others_may_write_to_by_a_list_is_refused(tmp_path: Path) -> None:
    program, library = tmp_path / "bin/python3", tmp_path / "lib/python3.11/os.py"
    for path in (program, library):
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
    for path in (program, library):
        plant(path, for_user(STRANGER.pw_uid, WRITES_ALL))
        with pytest.raises(RefusedPath, match="users other than root may change it") as caught:
            given_python(str(program), True, lambda _: (0, "CPython 3.11.7 \n", ""))
        assert caught.value.hint.startswith(f"sudo setfacl -b {path}")
        os.removexattr(path, ACCESS)
        path.chmod(0o755)


# --- a file whose mode and owner are set has no list


@pytest.mark.parametrize("entry", [ACCOUNT, {"mode": "0700"}, {"owner": STRANGER.pw_name}])
def test_a_list_does_not_outlast_a_setup(tmp_path: Path, entry: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    settled(runs, state="directory", **entry)
    before = (mode(runs), runs.owner())
    plant(runs, for_user(OTHER.pw_uid, READS_ALL))
    assert settled(runs, True, state="directory", **entry), "a dry run names it"
    assert lists_of(runs) == [ACCESS, DEFAULT]
    assert settled(runs, state="directory", **entry)
    assert lists_of(runs) == []
    assert (mode(runs), runs.owner()) == before
    assert not settled(runs, state="directory", **entry)


def test_what_is_created_below_a_list_does_not_inherit_it(tmp_path: Path, run_module: Any) -> None:
    plant(tmp_path, for_user(OTHER.pw_uid, READS_ALL), DEFAULT)
    (tmp_path / "usual").mkdir()
    assert lists_of(tmp_path / "usual") == [ACCESS, DEFAULT]
    settled(tmp_path / "a/b/secret", state="directory", **ACCOUNT)
    make_folder(tmp_path / "c")
    write_text(tmp_path / "file", "x", 0o640)
    texts = {"job.json": "{}"}
    (tmp_path / "current").symlink_to("stack")
    (tmp_path / "stack").mkdir()
    created = run_module(run_folder.main, path=f"{tmp_path}/d/run", stack=f"{tmp_path}/current",
                         version="1", format=1, later_fields=[], alone=False, mode="0750",
                         texts=texts)  # fmt: skip
    assert created["changed"], created
    for name in ("a", "a/b", "a/b/secret", "c", "file", "d/run", "d/run/job.json"):
        assert lists_of(tmp_path / name) == [], name
    assert (mode(tmp_path / "a/b"), mode(tmp_path / "d/run")) == (0o755, 0o750)
    stack = tmp_path / "stacks/one"
    stack.mkdir(parents=True)
    environment.protect(stack)
    assert lists_of(stack) == []


def test_another_user_does_not_read_the_next_accounts_runs(
    open_folder: Path, run_module: Any
) -> None:
    """A list on the runs survives a teardown that keeps them and a setup, until a new run."""
    runs = open_folder / "runs"
    old = runs / "old/deep"
    settled(runs, state="directory", **ACCOUNT | {"mode": "0750"})
    with as_user(STRANGER):
        plant(runs, for_user(OTHER.pw_uid, READS_ALL))
        old.mkdir(parents=True)
        (old / "model").write_text("secret")
        (old / "link").symlink_to("/etc/passwd")
    with as_user(OTHER):
        assert (old / "model").read_text() == "secret", "the list works"
    outside = open_folder / "outside"
    outside.write_text("")
    os.chown(outside, OTHER.pw_uid, 0)
    os.link(outside, old / "others")
    owner = Path("/etc/passwd").owner()
    given = {"path": str(runs), "uid": STRANGER.pw_uid}
    assert run_module(give_to_root.main, check=True, **given)["changed"]
    assert runs.owner() == "nobody"
    result = run_module(give_to_root.main, **given)
    assert (result["changed"], result["given"]) == (True, 5)
    assert result["left"] == [], "others is a file of a user with an account"
    assert not run_module(give_to_root.main, **given)["changed"]
    assert outside.owner() == "daemon"
    assert Path("/etc/passwd").owner() == owner
    assert {path.lstat().st_uid for path in runs.rglob("[!o]*")} == {0}
    assert [lists_of(path) for path in (runs, runs / "old", old, old / "model")] == [[]] * 4
    settled(runs, state="directory", **ACCOUNT | {"mode": "0750"})
    with as_user(STRANGER):
        (runs / "new").mkdir()
        (runs / "new/model").write_text("secret")
    for path in (runs / "new/model", old / "model"):
        with as_user(OTHER), pytest.raises(PermissionError):
            path.read_text()


def test_the_deepest_folder_is_given_to_root_and_no_set_id_bit_with_it(tmp_path: Path) -> None:
    """Deeper than Python can recurse, and than a process can have open files."""
    top = tmp_path / "runs"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        os.chown("d", STRANGER.pw_uid, 0, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    program = os.open("program", os.O_CREAT | os.O_WRONLY, 0o755, dir_fd=here)
    os.fchown(program, STRANGER.pw_uid, 0)
    os.fchmod(program, 0o4755)
    assert give_to_root.give_all(top, STRANGER.pw_uid) == (1101, [])
    assert os.fstat(here).st_uid == 0
    assert (os.fstat(program).st_uid, stat.S_IMODE(os.fstat(program).st_mode)) == (0, 0o755)
    os.close(program)
    os.close(here)
    settled(top, state="absent")


def test_no_account_is_root(run_module: Any, tmp_path: Path) -> None:
    refusal = run_module(give_to_root.main, path=str(tmp_path), uid=0)
    assert "an account other than root" in refusal["msg"]
    nothing = run_module(give_to_root.main, path=str(tmp_path / "none"), uid=1)
    assert (nothing["changed"], nothing["left"]) == (False, [])
    (tmp_path / "file").touch()
    refusal = run_module(give_to_root.main, path=str(tmp_path / "file"), uid=1)
    assert refusal["msg"].startswith(str(tmp_path / "file"))


def test_files_of_a_number_without_an_account_are_named(run_module: Any, tmp_path: Path) -> None:
    """Somebody removed the account by hand, and setup created it with another user id."""
    runs = tmp_path / "runs"
    for name in ("old/model", "old/logs", "new"):
        (runs / name).mkdir(parents=True)
    former = next(uid for uid in range(61_000, 62_000) if not give_to_root.has_account(uid))
    for path in (runs / "old", runs / "old/model", runs / "new/link"):
        if path.name == "link":
            path.symlink_to("/etc/passwd")
        os.chown(path, former, 0, follow_symlinks=False)
    os.chown(runs, STRANGER.pw_uid, 0)
    result = run_module(give_to_root.main, path=str(runs), uid=STRANGER.pw_uid)
    assert (result["given"], sorted(result["left"])) == (
        1, [f"{runs}/new/link (user id {former})", f"{runs}/old (user id {former})"]
    )  # fmt: skip
    assert (runs / "old").stat().st_uid == former
