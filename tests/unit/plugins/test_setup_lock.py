import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.action import setup_lock as action
from ansible_collections.ftcluster.cluster.plugins.module_utils import alone
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.modules import setup_lock
from ansible_collections.ftcluster.cluster.plugins.modules.setup_lock import (
    Moment,
    is_free,
    main,
    new_lock,
    read_lock,
    refusal,
    release,
    take,
)

from tests.unit.hosts import plugin

NOW, LEASE = Moment(1_000_000.0, 50_000.0, "b1"), 3600
CLOCK = NOW.clock
# a lock of a version that stored no uptime
LOCK = {
    "owner": "here 100 5", "control": "here", "who": "ops on bastion (process 100)",
    "since": CLOCK - 120, "boot": "b1",
}  # fmt: skip


# --- who may take a lock


@pytest.mark.parametrize(
    ("changes", "owner", "alive", "booted", "free"),
    [
        ({}, "here 100 5", [], "b1", True),  # the owner at a later stage
        ({}, "here 200 9", [], "b1", True),  # killed: no process has this id any more
        ({}, "here 200 9", ["here 200 9"], "b1", True),
        ({}, "here 200 9", ["here 100 5", "here 200 9"], "b1", False),
        ({}, "here 200 9", ["here 100 7"], "b1", True),  # another process has this id now
        ({}, "there 100 5", [], "b1", False),  # a process on another machine cannot be checked
        ({}, "there 100 5", ["here 100 5"], "b1", False),
        ({}, "there 100 5", [], "b2", True),  # the host was rebooted since
        ({"since": CLOCK - LEASE - 1}, "there 100 5", [], "b1", True),
        ({"since": CLOCK - LEASE - 1}, "here 200 9", ["here 100 5"], "b1", False),
        ({"since": CLOCK + 999}, "there 100 5", [], "b1", False),  # clocks differ
    ],
)
def test_who_may_take_it(
    changes: dict[str, Any], owner: str, alive: list[str], booted: str, free: bool
) -> None:
    now = replace(NOW, boot=booted)
    assert is_free({**LOCK, **changes}, owner, alive, LEASE, now) == free


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_lock_lasts_as_long_if_the_clock_of_the_host_is_set(jump: float) -> None:
    lock = new_lock("there 100 5", "ops on bastion", NOW)

    def later(seconds: float) -> Moment:
        return Moment(NOW.clock + jump + seconds, NOW.uptime + seconds, NOW.boot)

    assert not is_free(lock, "here 1 1", [], LEASE, later(LEASE - 1))
    assert is_free(lock, "here 1 1", [], LEASE, later(LEASE + 1))
    assert "started 2 min ago" in refusal(lock, later(125))


def test_the_refusal_names_the_first_and_what_to_do() -> None:
    found = refusal(LOCK, NOW)
    assert (
        "another setup is running here, started 2 min ago by ops on bastion (process 100); wait"
        in found
    )
    assert found.endswith("-e ftcluster_take_over=true")
    assert "started 0 min ago" in refusal({**LOCK, "since": CLOCK + 999}, NOW)
    assert "started 0 min ago by an unknown user" in refusal({"owner": "x"}, NOW)
    assert is_free({}, "here 100 5", [], LEASE, NOW)
    assert is_free({"owner": "of an older version"}, "here 100 5", [], LEASE, NOW)


# --- the file


def test_a_lock_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / ".setup"
    assert read_lock(path) == {}
    for text in ("", "{", "[]", "null", "{}", '{"who": "me"}'):
        path.write_text(text)
        assert read_lock(path) == {}
    path.write_bytes(b"\xff\xfe")
    assert read_lock(path) == {}
    path.write_text(json.dumps(LOCK))
    assert read_lock(path) == LOCK


def test_it_is_taken_kept_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "prefix" / ".setup"
    mine, other = {"owner": "me", "since": 1}, {"owner": "other", "since": 2}
    assert take(path, mine, lambda lock: not lock) is None
    assert take(path, other, lambda lock: not lock) == mine
    assert take(path, {**mine, "since": 9}, lambda _: True) is None
    assert read_lock(path) == mine  # held since its first stage
    release(path, "other")
    assert read_lock(path) == mine
    assert take(path, other, lambda _: True) is None
    release(path, "me")
    assert read_lock(path) == other
    release(path, "other")
    assert [left.name for left in path.parent.iterdir()] == [alone.LOCK]
    release(path, "other")
    release(tmp_path / "none" / ".setup", "me")


@pytest.mark.parametrize("stale", [True, False])
def test_of_many_at_the_same_moment_one_gets_it(
    tmp_path: Path, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".setup"
    if stale:
        path.write_text(json.dumps({"owner": "killed"}))
    begin, answers = threading.Barrier(8), {}

    def slowly(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = read_lock(path)
        time.sleep(0.02)  # long enough for the other processes to check too
        return found

    monkeypatch.setattr(setup_lock, "read_lock", slowly)

    def ask(name: str) -> None:
        begin.wait()
        answers[name] = take(
            path, {"owner": name}, lambda lock: lock.get("owner") in (None, "killed", name)
        )

    threads = [threading.Thread(target=ask, args=(f"setup{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name, other in answers.items() if other is None]
    assert read_lock(path) == {"owner": winner}
    assert all(other in (None, {"owner": winner}) for other in answers.values())


# --- the module


@pytest.fixture
def run(tmp_path: Path, run_module: Any) -> Callable[..., dict[str, Any]]:
    def ask(owner: str, alive: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
        asks = {"owner": owner, "who": f"who {owner}", "alive": alive, "digest": ""}
        given = {"prefix": str(tmp_path / "prefix"), "from_action": asks}
        found: dict[str, Any] = run_module(main, **{**given, **parameters})
        return found

    return ask


def test_a_second_setup_is_refused_by_the_name_of_the_first(tmp_path: Path, run: Any) -> None:
    assert not run("here 1 1").get("failed")
    lock = read_lock(tmp_path / "prefix" / ".setup")
    assert (lock["owner"], lock["control"], lock["boot"]) == ("here 1 1", "here", boot_id())
    assert abs(lock["since"] - time.time()) < 60
    failed = run("there 2 2")
    assert failed["failed"]
    assert "who here 1 1" in failed["msg"]
    assert "who here 1 1" in run("here 3 3", alive=["here 1 1", "here 3 3"])["msg"]
    assert not run("here 1 1").get("failed")
    assert not run("here 1 1", state="released").get("failed")
    assert not run("there 2 2").get("failed")


def test_what_a_killed_one_left_is_taken_over(tmp_path: Path, run: Any) -> None:
    run("here 1 1")
    assert not run("here 3 3", alive=["here 3 3"]).get("failed")
    assert read_lock(tmp_path / "prefix" / ".setup")["owner"] == "here 3 3"


@pytest.mark.parametrize("words", [{"take_over": True}, {"lease": -1}])
def test_it_is_taken_from_another_control_node_on_a_word(run: Any, words: dict[str, Any]) -> None:
    run("here 1 1")
    assert not run("there 2 2", **words).get("failed")
    assert "who there 2 2" in run("here 1 1")["msg"]


def test_check_mode_asks_and_takes_nothing(tmp_path: Path, run: Any) -> None:
    assert not run("here 1 1", check=True).get("failed")
    assert not (tmp_path / "prefix").exists()
    run("here 1 1")
    assert "who here 1 1" in run("there 2 2", check=True)["msg"]
    assert not run("here 1 1", check=True, state="released").get("failed")
    assert read_lock(tmp_path / "prefix" / ".setup")["owner"] == "here 1 1"


def test_nothing_of_it_counts_as_a_change(run: Any, tmp_path: Path) -> None:
    assert not run("here 1 1")["changed"]
    assert not run("here 1 1", state="released")["changed"]
    # a prefix that cannot be created is reported
    (tmp_path / "taken").write_text("a file")
    assert run("here 1 1", prefix=str(tmp_path / "taken"))["msg"].startswith(f"{tmp_path}/taken: ")


def test_where_there_is_no_folder_none_is_made_for_what_only_removes(
    tmp_path: Path, run: Any
) -> None:
    assert not run("here 1 1", create=False).get("failed")
    assert not (tmp_path / "prefix").exists()
    (tmp_path / "prefix").mkdir()
    assert not run("here 1 1", create=False).get("failed")
    assert "who here 1 1" in run("there 2 2")["msg"]


# --- the requester


def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments that the module gets on a host."""
    asking = plugin(action, {"prefix": "/opt"})
    monkeypatch.setattr(asking, "_execute_module", lambda _, arguments, **__: arguments)
    found: dict[str, Any] = asking.run(None, {})
    assert found["prefix"] == "/opt"
    asks: dict[str, Any] = found["from_action"]
    return asks


def test_the_owner_is_the_command_that_runs_the_playbooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTCLUSTER_PID", str(os.getpid()))
    found = asked(monkeypatch)
    assert found["owner"] == f"{action.control_id()} {os.getpid()} {action.started(os.getpid())}"
    assert f"(process {os.getpid()})" in found["who"]
    monkeypatch.delenv("FTCLUSTER_PID")
    assert asked(monkeypatch)["owner"].split()[1] == str(os.getppid())


def test_another_setup_on_this_machine_is_seen_while_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = [sys.executable, "-c", "print(flush=True); input()", "ftcluster", "setup"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe) as other:
        assert other.stdout
        other.stdout.readline()  # before this line, the kernel may not know its command line
        began = action.started(other.pid)
        own = f"{action.control_id()} {other.pid} {began}"
        assert int(began) > 0
        assert own in asked(monkeypatch)["alive"]
        other.communicate(b"\n")
    assert own not in asked(monkeypatch)["alive"]
    assert action.started(other.pid) == "0"


def test_a_process_with_an_odd_name_has_a_start(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "9"]) as other:
        time.sleep(0.05)
        assert int(action.started(other.pid)) >= int(action.started(os.getpid()))
        other.kill()
