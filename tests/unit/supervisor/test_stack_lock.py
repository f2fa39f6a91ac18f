"""A run's lock on its stack, and how setup handles it; real processes hold real locks."""

import contextlib
import fcntl
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import (
    InUse,
    run_of,
    runs_on,
    without_runs,
    words,
)
from ansible_collections.ftcluster.cluster.plugins.modules import (
    environment,
    setup_lock,
    stack_link,
)

from ftcluster_common.protocol.launch import Launch, RankHost
from ftcluster_train.errors import TrainError
from ftcluster_train.io import stack as stack_lock
from ftcluster_train.io.stack import hold_stack
from tests.programs import NODE_PATH

RUN = "quickstart-20260131-101500-7f3a"
HOLD = """
import sys, time
from pathlib import Path
from ftcluster_train.io.stack import hold_stack
hold_stack(Path(sys.argv[1]), inherited=True)
import subprocess
if "leaves a child" in sys.argv:
    subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """Make a complete stack with a node package."""
    path = tmp_path / "stacks" / "native-1"
    path.mkdir(parents=True)
    for name in (".complete", ".complete-node_agent"):
        (path / name).write_text("d1 boot\n")
    return path


@contextmanager
def run_on(
    stack: Path, *words: str, variable: str = "FTCLUSTER_RUN"
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process of a run, which has the run's id in its environment."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(stack), *words],
        env={"PYTHONPATH": NODE_PATH, variable: RUN, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_who_uses_a_stack_is_told_by_name(stack: Path) -> None:
    with without_runs(stack):
        pass
    with run_on(stack) as process:
        with pytest.raises(InUse) as caught, without_runs(stack):
            pass
        runs = stack.parents[1] / "runs"
        stop = f"{stack}/bin/python -I -m ftcluster_train.host.supervisor stop {runs}/{RUN}"
        assert str(caught.value) == (
            f"the run {RUN} uses the stack native-1 here, so the stack cannot be "
            f"changed or removed; wait until the run ends, or end it on the head: {stop}"
        )
        process.kill()
        process.wait()
        with without_runs(stack):  # the kernel has released the lock
            pass
    with run_on(stack), run_on(stack):  # ranks share the lock
        assert runs_on(stack) == [RUN]
    with without_runs(stack.with_name("none")):
        pass


@pytest.mark.needs("root")
def test_a_run_of_the_account_is_ended_as_the_account(stack: Path) -> None:
    runs = stack.parents[1] / "runs"
    runs.mkdir()
    os.chown(runs, pwd.getpwnam("nobody").pw_uid, -1)
    assert f"on the head: sudo -u nobody {stack}/bin/python -I -m" in words(stack, [RUN])


@pytest.mark.parametrize("said", ["a;id", "$(id)", "a b", "\x1b[2J", "a\nb", "a/../b", ""])
def test_what_is_no_run_id_is_not_put_into_a_command(tmp_path: Path, said: str) -> None:
    (tmp_path / "environ").write_bytes(f"A=b\0FTCLUSTER_RUN={said}\0".encode())
    (tmp_path / "cmdline").write_bytes(b"python\0-c\0")
    assert run_of(tmp_path) == ""
    (tmp_path / "environ").write_bytes(f"FTCLUSTER_RUN={RUN}\0".encode())
    assert run_of(tmp_path) == RUN


def test_what_a_process_becomes_or_leaves_behind_holds_it_too(stack: Path) -> None:
    with run_on(stack, "leaves a child") as process:
        process.kill()
        process.wait()
        with pytest.raises(InUse, match=RUN), without_runs(stack):
            pass
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has ended
                if any(path.resolve() == stack for path in (folder / "fd").iterdir()):
                    os.kill(int(folder.name), 9)


def test_who_locks_a_stack_without_being_a_run_is_named_by_process_and_user(stack: Path) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    with run_on(stack, variable="OTHER") as process:
        named = f"^process {process.pid} of {user} holds a lock on the stack native-1 here"
        with pytest.raises(InUse, match=named), without_runs(stack):
            pass
    # a run is also recognized by its folder
    with run_on(stack, f"/opt/ftcluster/runs/{RUN}", variable="OTHER"):
        assert runs_on(stack) == [RUN]


def test_a_rank_waits_for_a_setup_and_gives_up_by_the_stacks_name(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_lock, "WAIT_SECONDS", 0.3)
    began = time.monotonic()
    with (
        without_runs(stack),
        pytest.raises(TrainError, match="ftcluster setup is changing the stack"),
    ):
        hold_stack(stack)
    assert time.monotonic() - began > 0.3
    with pytest.raises(TrainError, match="native-2 no longer exists on") as caught:
        hold_stack(stack.with_name("native-2"))
    assert caught.value.hint == "run ftcluster setup"


def test_a_stack_that_was_removed_while_a_rank_waited_is_gone(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_it_is_removed(*_: int) -> None:
        stack.rename(stack.with_name("removed"))

    monkeypatch.setattr(fcntl, "flock", as_it_is_removed)
    with pytest.raises(TrainError, match="native-1 no longer exists on"):
        hold_stack(stack)


# --- the modules


@pytest.fixture
def link(tmp_path: Path, run_module: Any) -> Callable[..., dict[str, Any]]:
    return lambda **given: run_module(stack_link.main, **{"prefix": str(tmp_path), **given})


def test_prune_leaves_what_a_run_uses(tmp_path: Path, stack: Path, link: Any) -> None:
    other, spare = stack.with_name("native-2"), stack.with_name("native-3")
    for path in (other, spare):
        path.mkdir()
        (path / ".complete").touch()
    (tmp_path / "current").symlink_to(other)
    with run_on(stack):
        assert link(state="pruned", check=True)["removed"] == ["native-3"]
        found = link(state="pruned")
        assert found["removed"] == ["native-3"]
        assert [line.partition(" uses the stack native-1")[0] for line in found["kept"]] == [
            f"the run {RUN}"
        ]
        assert (stack / ".complete").is_file()
    assert link(state="pruned")["removed"] == ["native-1"]


def test_all_stacks_are_removed_or_none(tmp_path: Path, stack: Path, link: Any) -> None:
    other = stack.with_name("native-2")
    other.mkdir()
    (tmp_path / "current").symlink_to(other)
    with run_on(stack):
        failed = link(state="removed")
        assert failed["msg"].startswith(f"the run {RUN} uses the stack native-1")
        assert other.is_dir()
        assert (tmp_path / "current").is_symlink()
    assert link(state="removed", check=True)["changed"]
    assert stack.is_dir()
    assert link(state="removed")["removed"] == ["native-1", "native-2"]
    assert list(tmp_path.iterdir()) == []
    assert not link(state="removed")["changed"]


def test_the_links_may_move_while_a_run_uses_a_stack(stack: Path, link: Any) -> None:
    other = stack.with_name("native-2")
    other.mkdir()
    (other / ".complete").touch()
    link(path=str(stack))
    with run_on(stack):
        assert link(path=str(other))["changed"]
        assert link(state="previous")["current"] == str(stack)


def test_the_lock_is_refused_where_the_setup_would_change_what_a_run_uses(
    tmp_path: Path, stack: Path, run_module: Any
) -> None:
    def ask(digest: str = "", check: bool = False) -> dict[str, Any]:
        sent = {"owner": "here 1 1", "who": "ops", "digest": digest, "alive": []}
        lock = {"prefix": str(tmp_path), "stacks": [str(stack)], "from_action": sent}
        found: dict[str, Any] = run_module(setup_lock.main, check=check, **lock)
        return found

    with run_on(stack):
        for check in (True, False):
            failed = ask(digest="d2", check=check)
            assert failed["msg"].startswith(f"the run {RUN} uses the stack native-1")
        assert not (tmp_path / ".setup").exists()
        assert "msg" not in ask(digest="d1")  # the stack has this node package already
        assert RUN in ask()["msg"]  # a teardown
    assert "msg" not in ask(digest="d2")


def test_a_setup_without_a_host_that_a_run_uses_is_refused(
    tmp_path: Path, stack: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    hosts = [RankHost(f"node{n}", f"10.0.0.{n}") for n in range(4)]
    text = json.dumps(Launch(f"{tmp_path}/runs/{RUN}", (), {}, (*hosts,), "", "").to_dict())
    launch = tmp_path / "runs" / RUN / "launch.json"
    launch.parent.mkdir(parents=True)
    launch.write_text(text)
    everyone = [host.address for host in hosts]

    def ask(members: list[str], check: bool = False) -> dict[str, Any]:
        sent = {"owner": "here 1 1", "who": "ops", "digest": "", "alive": []}
        lock = {"prefix": str(tmp_path), "members": members, "from_action": sent}
        found: dict[str, Any] = run_module(setup_lock.main, check=check, **lock)
        return found

    without = everyone[:2]
    with run_on(stack):
        for check in (True, False):
            refused = ask(without, check)["msg"]
            problem = f"run {RUN} uses node2, node3, missing from the inventory"
            assert refused.startswith(problem)
            assert f"ftcluster stop {RUN}" in refused
        assert not (tmp_path / ".setup").exists()
        for members in ([], everyone, everyone[1:]):  # the head stays the head
            assert "msg" not in ask(members)
        for damaged in (
            "{",
            "[]",
            '{"hosts": [1, 2]}',
            '{"hosts": [{}, {"name": "a\\nb", "address": ""}]}',
        ):
            launch.write_text(damaged)
            assert "msg" not in ask(without)
    launch.write_text(text)
    assert "msg" not in ask(without), "the run has ended"


def test_a_node_package_is_not_replaced_under_a_run(
    tmp_path: Path, stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failed(Exception):
        pass

    class Module:
        params = {"layer": "node_agent", "base": None, "python": ""}  # noqa: RUF012

        def fail_json(self, msg: str) -> None:
            raise Failed(msg)

    filled: list[Path] = []
    monkeypatch.setattr(environment, "fill", lambda _, path, *__: filled.append(path))
    staging = tmp_path / "staging"
    with run_on(stack):
        staging.mkdir()
        with pytest.raises(Failed, match=f"the run {RUN} uses the stack native-1"):
            environment.install(Module(), stack, str(staging), "d2", {})
    assert filled == []
    staging.mkdir()
    assert environment.install(Module(), stack, str(staging), "d2", {})
    assert filled == [stack]
