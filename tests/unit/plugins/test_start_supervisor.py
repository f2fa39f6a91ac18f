"""root executes only a stack that nobody else can have written."""

import os
import pwd
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import RefusedPath
from ansible_collections.ftcluster.cluster.plugins.modules.start_supervisor import (
    PROGRAM,
    RUN,
    stack_of,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to plant another user's")
STRANGER = pwd.getpwnam("nobody")
SITE = "lib/python3.11/site-packages"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix with one stack, as setup leaves it."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    stack(tmp_path / "prefix/stacks/native-1")
    (tmp_path / "prefix/current").symlink_to("stacks/native-1")
    return tmp_path / "prefix"


def stack(folder: Path) -> Path:
    for name in ("bin/python", f"{SITE}/{PROGRAM}"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    return folder


def test_a_stack_of_roots_is_taken(prefix: Path) -> None:
    assert stack_of(prefix) == (prefix / "stacks/native-1").resolve()


def test_a_link_that_leads_elsewhere_is_refused(prefix: Path) -> None:
    planted = stack(prefix.parent / "planted")
    (prefix / "current").unlink()
    (prefix / "current").symlink_to(planted)
    with pytest.raises(ValueError, match="which is not in"):
        stack_of(prefix)


@pytest.mark.parametrize("what", ["nothing", "no package"])
def test_without_a_stack_the_remedy_is_named(prefix: Path, what: str) -> None:
    if what == "nothing":
        (prefix / "current").unlink()
    else:
        (prefix / "stacks/native-1" / SITE / PROGRAM).unlink()
    with pytest.raises(ValueError, match="run ftcluster setup"):
        stack_of(prefix)


@needs_root
@pytest.mark.parametrize(
    "name",
    [".", "current", "stacks", "stacks/native-1", "stacks/native-1/bin",
     "stacks/native-1/bin/python", f"stacks/native-1/{SITE}", f"stacks/native-1/{SITE}/{PROGRAM}"],
)  # fmt: skip
def test_what_another_user_could_have_written_is_refused(prefix: Path, name: str) -> None:
    path = prefix / name
    os.lchown(path, STRANGER.pw_uid, -1)
    with pytest.raises(RefusedPath):
        stack_of(prefix)
    os.lchown(path, 0, STRANGER.pw_gid)
    if not path.is_symlink():
        path.chmod(path.stat().st_mode | 0o020)
        with pytest.raises(RefusedPath):
            stack_of(prefix)


@needs_root
def test_python_of_another_user_is_refused_where_the_link_is_roots(
    prefix: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "python").write_text("")
    os.chown(theirs, STRANGER.pw_uid, STRANGER.pw_gid)
    program = prefix / "stacks/native-1/bin/python"
    program.unlink()
    program.symlink_to(theirs / "python")
    with pytest.raises(RefusedPath, match="nobody may write here"):
        stack_of(prefix)


@pytest.mark.parametrize(
    "run", ["", "../x", "/etc", "a/b", "a\n", "-x", ".x", "a b", "a;b", "x" * 300, "é"]
)
def test_what_is_no_id_of_a_run_is_refused(run: str) -> None:
    assert not RUN.fullmatch(run)
