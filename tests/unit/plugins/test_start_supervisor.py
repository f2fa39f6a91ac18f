"""root executes only a stack that no other user can have written."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import RefusedPath
from ansible_collections.ftcluster.cluster.plugins.modules.start_supervisor import (
    PROGRAM,
    RUN,
    command_of,
    stack_of,
)

from ftcluster_common.protocol.run_state import RUN_ID
from tests.programs import ROOT

STRANGER = pwd.getpwnam("nobody")
SITE = "lib/python3.11/site-packages"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a prefix with one stack, as setup does."""
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


@pytest.mark.needs("root")
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


@pytest.mark.needs("root")
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


def test_what_is_one_everywhere_is_one_here() -> None:
    assert RUN.pattern == RUN_ID.pattern  # a run such as "_train-...", of _train.py, must match


PLANTED = """
import os
with open({seen!r}, "a") as file:
    print(os.getuid(), __name__, file=file)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="ftcluster-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.needs("root")
@pytest.mark.parametrize("isolated", [True, False])
def test_nothing_that_the_account_has_planted_runs_as_root(
    open_folder: Path, isolated: bool
) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = open_folder / "prefix/stacks/native-1"
    site, home, seen = (
        folder / f"lib/{version}/site-packages",
        open_folder / "home",
        open_folder / "seen",
    )
    for path in ("bin", "lib"):
        (folder / path).mkdir(parents=True)
    shutil.copytree(ROOT / "train/ftcluster_train", site / "ftcluster_train")
    shutil.copytree(ROOT / "common/ftcluster_common", site / "ftcluster_common")
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {sysconfig.get_path('scripts')}\n")
    (open_folder / "prefix/current").symlink_to(folder)
    own = home / f".local/lib/{version}/site-packages"
    run_dir = open_folder / "prefix/runs/r-1"
    for path in (own, run_dir, home / "modules"):
        path.mkdir(parents=True)
    planted = PLANTED.format(seen=str(seen))
    for path in (own / "usercustomize.py", own / "x.pth", home / "modules/sitecustomize.py",
                 home / "modules/json.py", home / "json.py", home / ".profile"):  # fmt: skip
        path.write_text(planted.strip().replace("\n", "; ") if path.suffix == ".pth" else planted)
    (open_folder / "shadow").write_text('{"slurm_job": "1"}')
    (open_folder / "shadow").chmod(0o600)
    (run_dir / "launch.json").symlink_to(open_folder / "shadow")
    for path in (home, run_dir, *home.rglob("*")):
        os.chown(path, STRANGER.pw_uid, STRANGER.pw_gid)
    command = command_of(stack_of(open_folder / "prefix"), run_dir, "nobody")
    done = subprocess.run(
        command if isolated else [word for word in command if word != "-I"],
        env={"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": str(home / "modules"),
             "PYTHONSTARTUP": str(home / "json.py"), "PYTHONUSERBASE": str(home / ".local")},
        cwd=home, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    # without -I it would be executed
    assert (seen.exists() and "0 " in seen.read_text()) == (not isolated)
    if isolated:
        assert done.returncode == 1
        assert "launch.json" in done.stderr
        assert "Permission denied" in done.stderr
        assert "slurm" not in done.stderr
