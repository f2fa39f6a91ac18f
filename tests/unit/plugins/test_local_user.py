"""An ordinary user who locks every file that he can open does not block other users."""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import alone_in
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import without_runs
from ansible_collections.ftcluster.cluster.plugins.modules import environment
from ansible_collections.ftcluster.cluster.plugins.modules.environment import finish, protect

from ftcluster_train.io.stack import hold_stack
from tests.rights import PYTHON

pytestmark = pytest.mark.needs("root")
NOBODY = pwd.getpwnam("nobody")
LOCK_ALL = """
import fcntl, os, sys
held = []
for folder, _, names in os.walk(sys.argv[1]):
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        try:
            held.append(os.open(path, os.O_RDONLY))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        print(path)
for path in sys.argv[2:]:  # what cannot be listed can be guessed
    try:
        held.append(os.open(path, os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        continue
    print(path)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Make a prefix with a stack that other users cannot enter."""
    with tempfile.TemporaryDirectory(prefix="ftcluster-test-") as folder:
        prefix = Path(folder)
        prefix.chmod(0o755)
        for name in ("runs", "stacks/native-1/bin"):
            (prefix / name).mkdir(parents=True)
        (prefix / "runs").chmod(0o750)
        yield prefix


@contextmanager
def everything_locked(prefix: Path) -> Iterator[list[str]]:
    """Lock all files below the prefix as another user, and yield their paths."""
    named = [prefix / ".alone", prefix / "stacks/.alone", prefix / "stacks/native-1"]
    command = [PYTHON, "-I", "-c", LOCK_ALL, prefix, *named]
    with subprocess.Popen(
        command, user=NOBODY.pw_uid, group=NOBODY.pw_gid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        locked = []
        for line in process.stdout:
            if line == "done\n":
                break
            locked.append(str(Path(line.rstrip("\n")).relative_to(prefix)))
        yield locked
        process.stdin.close()


def test_the_lock_of_a_setup_is_not_his(prefix: Path) -> None:
    for folder in (prefix, prefix / "stacks"):
        with alone_in(folder):
            pass
    with everything_locked(prefix) as locked:
        assert "." in locked  # otherwise the user has not tried
        assert not any(".alone" in path for path in locked)
        with alone_in(prefix, seconds=0), alone_in(prefix / "stacks", seconds=0):
            pass


def test_the_lock_of_a_stack_is_not_his(prefix: Path) -> None:
    stack = prefix / "stacks/native-1"
    protect(stack)
    with everything_locked(prefix) as locked:
        assert "stacks/native-1" not in locked
        with without_runs(stack):
            pass
        hold_stack(stack)
    program = [PYTHON, "-I", "-c", f"import os; os.stat({str(stack / 'bin')!r})"]
    subprocess.run(program, user=NOBODY.pw_uid, group=NOBODY.pw_gid, cwd="/", check=True)


def test_the_account_that_trains_can_lock_a_stack_that_is_older(
    prefix: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    stack = prefix / "stacks/native-1"
    protect(stack)
    os.chown(prefix / "runs", NOBODY.pw_uid, NOBODY.pw_gid)
    finish(stack, "", "d1")
    found = run_module(environment.main, path=str(stack), python=sys.executable)
    assert found["digest"] == "d1"
    with everything_locked(prefix) as locked:
        assert "stacks/native-1" in locked
