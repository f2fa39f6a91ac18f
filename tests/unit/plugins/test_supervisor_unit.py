"""Root executes a stack's Python only where nobody else can have made or changed it."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules.supervisor_unit import main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to plant another user's")
STRANGER = pwd.getpwnam("nobody").pw_uid
Start = Callable[[str | Path], Any]


@pytest.fixture(autouse=True)
def _no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)


def made(stack: Path) -> Path:
    """A stack whose Python leaves its arguments in a file."""
    package = stack / "lib/python3.11/site-packages/ftcluster_train"
    package.mkdir(parents=True)
    (package / "supervisor.py").touch()
    (stack / "pyvenv.cfg").touch()
    (stack / "bin").mkdir()
    python = stack / "bin/python"
    python.write_text(f'#!/bin/sh\necho "$PWD $*" > {stack}/executed\n')
    python.chmod(0o755)
    return stack


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    prefix = tmp_path / "prefix"
    stack = made(prefix / "stacks/native-1")
    (prefix / "current").symlink_to(stack)
    return stack


@pytest.fixture
def start(stack: Path, run_module: Any) -> Start:
    prefix = stack.parents[1]
    own = {"prefix": str(prefix), "run_dir": f"{prefix}/runs/r-1", "user": "nobody"}
    return lambda path: run_module(main, **own, stack=str(path))


def test_the_stack_in_use_is_executed_without_what_lies_in_a_home(
    stack: Path, start: Start
) -> None:
    wanted = f"/ -I -B -m ftcluster_train.supervisor start {stack.parents[1]}/runs/r-1"
    for path in (stack, stack.parents[1] / "current"):
        assert start(path).get("started"), start(path)["msg"]
        assert (stack / "executed").read_text() == f"{wanted} --user nobody\n"
        (stack / "executed").unlink()


def test_a_stack_elsewhere_is_not_executed(stack: Path, start: Start, tmp_path: Path) -> None:
    planted = made(tmp_path / "home/native-1")
    others = (planted, f"{stack.parent}/../../home/native-1", f"{stack.parent}/..", "/", "")
    for path in others:
        assert start(path)["refused"], path
    (stack.parent / "planted").symlink_to(planted)
    (stack.parents[1] / "current").unlink()
    (stack.parents[1] / "current").symlink_to(planted)
    for path in (stack.parent / "planted", stack.parents[1] / "current"):
        assert f"leads to {planted}, no stack" in start(path)["msg"]
    assert start(stack.parent / "missing")["refused"]
    assert not (planted / "executed").exists()


@pytest.mark.parametrize(
    "place",
    [
        "stacks", "stacks/native-1", "stacks/native-1/bin", "stacks/native-1/bin/python",
        "stacks/native-1/pyvenv.cfg", "stacks/native-1/lib/python3.11/site-packages",
        "stacks/native-1/lib/python3.11/site-packages/ftcluster_train/supervisor.py",
        "stacks/native-1/lib/python3.11/site-packages/planted.pth",
        "stacks/native-1/lib/python3.11/site-packages/sitecustomize.py",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["owner", "group", "mode"])
def test_what_another_user_may_write_is_not_executed(
    stack: Path, start: Start, place: str, how: str
) -> None:
    path = stack.parents[1] / place
    if not path.exists():
        path.touch()
    assert start(stack)["started"]
    (stack / "executed").unlink()
    if how == "owner":
        os.chown(path, STRANGER, -1)
    else:
        os.chown(path, 0, STRANGER)
        path.chmod(0o775 if how == "group" else 0o757)
    refused = start(stack)
    assert refused["refused"]
    assert str(path) in refused["msg"]
    assert not (stack / "executed").exists()


def test_links_of_the_account_are_not_followed(stack: Path, start: Start) -> None:
    os.chown(stack.parents[1] / "current", STRANGER, -1, follow_symlinks=False)
    assert "nobody may have made" in start(stack.parents[1] / "current")["msg"]
    assert not (stack / "executed").exists()
