"""Responses of hosts are found by their mark, whatever else their shells print."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow
from ansible_collections.ftcluster.cluster.plugins.action.follow import ActionModule, _Log, _Piece
from ansible_collections.ftcluster.cluster.plugins.filter.root_answer import root_answer
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL, answers
from jinja2 import Environment

from tests.programs import ROOT
from tests.unit.hosts import as_run

# a login script's line without a line end, a terminal's carriage returns, sudo's warning and
# lecture
NOISE = (
    "Welcome, 0 updates\r\nlast login: 0\r\n"
    "sudo: unable to resolve host node0: Name or service not known\r\n"
    "\r\nWe trust you have received the usual lecture. It usually boils down to:\r\n"
    "    #1) Respect the privacy of others.\r\n\r\n[sudo] password for ops: "
)


def test_answers_are_found_among_what_login_scripts_and_sudo_print() -> None:
    text = (
        f"{NOISE}{MARK} uid 0\r\n0\r\n{MARK} missing /a b\n{MARK} missing /c\n{MARK} port \r\nbye"
    )
    assert answers(text) == {"uid": ["0"], "missing": ["/a b", "/c"], "port": [""]}
    assert answers(NOISE) == {}
    # a trace of the commands is not an answer
    shell = f"set -x\n{TELL}\ntell uid 0\ntell 'list' '{{\"a\": \"$b\\\\n\"}}'"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert answers(done.stderr) == {}
    assert answers(done.stdout) == {"uid": ["0"], "list": ['{"a": "$b\\\\n"}']}


TTY = (
    "sudo requires a terminal (requiretty in sudoers), which Ansible does not provide: add "
    "Defaults:USER !requiretty to sudoers for the user that Ansible logs in as"
)


@pytest.mark.parametrize(
    ("result", "because"),
    [
        ({"stdout": f"{NOISE}{MARK} uid 0\r\n", "rc": 0}, None),
        ({"stdout": f"0\r\n{MARK} uid 1000\r\n"}, "the attempt to become root ended as user 1000"),
        ({"stdout": "0\r\n", "rc": 0}, "0"),  # an answer without a mark is ignored
        ({"msg": "Task failed: Missing sudo password"},
         "sudo asks for a password; pass it with -K"),
        ({"msg": "Task failed: Incorrect sudo password"}, "sudo refuses the password"),
        ({"msg": "non-zero return code", "stdout": "bash: sudo: command not found\r\n"},
         "sudo is not installed"),
        ({"msg": "non-zero return code", "stdout": f"{NOISE}\r\nops may not run sudo here.\r\n"},
         "ops may not run sudo here."),
        # sudo 1.9 and 1.8 with Defaults requiretty
        ({"msg": "x", "stdout": "sudo: sorry, you must have a tty to run sudo\r\n"}, TTY),
        ({"msg": "x", "stderr": "sudo: sorry, you must have a tty to run sudo\n"}, TTY),
        ({"skipped": True}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_whether_root_can_be_had(result: dict[str, Any], because: str | None) -> None:
    found = root_answer(result)
    assert found["can"] == (because is None)
    assert found["because"] == (because or "")
    assert found["wrong_password"] == ("Incorrect" in result.get("msg", ""))
    assert found["asks_password"] == ("Missing" in result.get("msg", ""))
    assert (found["user"], found["sshd"]) == ("", {"rules": [], "lines": [], "groups": []})


@pytest.mark.needs("root", "mount")
def test_root_is_asked_whether_it_may_write(tmp_path: Path) -> None:
    """The shell commands of preflight with a home that root may not write to, as on NFS."""
    tasks = yaml.safe_load((ROOT / "roles/preflight/tasks/gather.yml").read_text())
    environment = Environment(autoescape=False)
    environment.filters["quote"] = shlex.quote
    script = environment.from_string(tasks[0]["vars"]["preflight__questions"])
    home, prefix = tmp_path / "home", tmp_path / "disk/not there"
    home.mkdir()
    (tmp_path / "getent").write_text(f"#!/bin/sh\necho ops:x:1000:1000::{home}:/bin/sh\n")
    (tmp_path / "getent").chmod(0o755)

    def refused(temp: str, mount: str = "true") -> list[str]:
        given = {
            "preflight__remote_tmp": temp, "preflight_prefix": str(prefix),
            "preflight_rank_user": "ftcluster", "preflight__head_address": "node0",
        }  # fmt: skip
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{mount} && {script.render(given)}"],
            env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", "SUDO_USER": "ops"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = root_answer({"stdout": done.stdout})
        assert found["can"], done.stderr
        answer: list[str] = found["refused"]
        return answer

    read_only = f"mount --bind -o ro {home} {home}"
    assert refused("~/.ansible/tmp") == []
    assert refused("~/.ansible/tmp", read_only) == ["temp"]
    assert refused("/var/tmp/.ansible-ops", read_only) == []
    assert refused("/var/tmp", f"mount -t tmpfs -o ro none {tmp_path}") == ["prefix"]


def test_who_was_become_and_whom_sshd_lets_in() -> None:
    lines = ("uid 0", "sshd allowusers ops", "sshd allowusers ml", "sshd_line /etc/x:3:AllowUsers",
             "account_groups ml users", "user ml")  # fmt: skip
    found = root_answer({"stdout": NOISE + "".join(f"\r\n{MARK} {line}" for line in lines)})
    assert (found["can"], found["user"]) == (True, "ml")
    assert found["sshd"] == {
        "rules": ["allowusers ops", "allowusers ml"], "lines": ["/etc/x:3:AllowUsers"],
        "groups": ["ml", "users"],
    }  # fmt: skip


def test_the_state_of_a_run_and_its_events_come_after_the_mark() -> None:
    action: Any = ActionModule.__new__(ActionModule)
    asked = []

    def execute(command: str, **_: object) -> dict[str, str]:
        asked.append(command)
        return {"stdout": f"alive\nBECOME-SUCCESS-x\n{MARK} gone 7 5 9\n\n{{}}\n"}

    action._low_level_execute_command = execute
    action._run_dir = "/runs/a b"
    alive, pieces = action._poll([_Log("events.jsonl", bytes, offset=5)], 0)
    assert (alive, pieces) == (False, [_Piece("7", 5, 9, b"\n{}\n")])
    assert TELL in as_run(asked[0])


def test_a_supervisor_that_starts_late_is_not_reported_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time before the start does not count towards GONE_SECONDS.

    The host's commands run in a real shell and find real processes; only the clock is the test's.
    """
    run_dir = tmp_path / "runs/r-1"
    run_dir.mkdir(parents=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    processes = [ended]
    now = 0.0

    def execute(command: str, **_: object) -> dict[str, Any]:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return {"stdout": done.stdout, "stderr": done.stderr, "rc": done.returncode}

    def first_process() -> None:  # as if it started after the check for processes
        (run_dir / "supervisor.pid").write_text(str(ended.pid))

    def supervisor() -> None:
        program = [sys.executable, "-c", "import time; time.sleep(1000)", str(run_dir)]
        processes.append(subprocess.Popen(program))
        (run_dir / "supervisor.pid").write_text(str(processes[1].pid))

    def end() -> None:
        (run_dir / "output.log").write_text("step 1\n")
        (run_dir / "events.jsonl").write_text('{"event": "end"}\n')
        processes[1].kill()
        processes[1].wait()

    steps = iter([(30.0, first_process), (1.0, supervisor), (1.0, end), (1.0, lambda: None)])

    def sleep(_: float) -> None:
        nonlocal now
        seconds, change = next(steps)
        now += seconds
        change()

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(follow, "time", clock)
    monkeypatch.setattr(follow, "WAIT_SECONDS", 0)
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    module: Any = ActionModule.__new__(ActionModule)
    module._low_level_execute_command = execute
    copy = tmp_path / "copy.log"
    arguments = {"run_dir": str(run_dir), "file": "output.log", "destination": str(copy)}
    module._task = SimpleNamespace(args=arguments)
    try:
        module.run()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert copy.read_text() == "step 1\n"


def test_two_commands_follow_a_run_into_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stop` does this while `train` follows: the end is copied once, and both find it."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    copy = tmp_path / "events.jsonl"
    whole = b'{"event": "phase"}\n{"event": "end"}\n'
    for _ in range(2):
        module: Any = ActionModule.__new__(ActionModule)
        module._task = SimpleNamespace(args={"run_dir": "/r", "destination": str(copy)})

        def poll(logs: Sequence[_Log], _wait: int) -> tuple[bool, list[_Piece]]:
            offset = logs[0].offset
            return False, [_Piece("7", offset, len(whole), whole[offset:])]

        module._poll = poll
        assert module.run()["end"] == {"event": "end"}
        assert copy.read_bytes() == whole
