"""Signals and their senders, between real processes."""

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftcluster_train.io import shutdown
from ftcluster_train.io.rank_status import read_report
from ftcluster_train.io.shutdown import is_stopping
from ftcluster_train.io.signals import OUTSIDE, Received, ancestors_of, read_sender
from tests.programs import NODE_PATH

# a program that prints each signal
RECEIVER = """
import json, os, signal, sys, threading, time
from ftcluster_train.io.signals import take_signals
if sys.argv[2:]:  # a library has started a thread that does not block the signals
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
taken = []
take_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), taken.append)
print("ready", flush=True)
while len(taken) < int(sys.argv[1]):
    time.sleep(0.01)
print(json.dumps([one.to_dict() for one in taken]), flush=True)
os._exit(0)
"""


def receive(kill: str, *options: str) -> list[dict[str, object]]:
    """Send signals to a process with a shell command; return the process's output."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVER, "1", *options], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": NODE_PATH},
    )  # fmt: skip
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        command = ["bash", "-c", kill.format(pid=process.pid)]
        sender = subprocess.Popen(command)
        report: list[dict[str, object]] = json.loads(process.stdout.readline())
        sender.wait(10)
    finally:
        process.kill()
        process.communicate()
    return [{**one, "sent_by_shell": one["pid"] == sender.pid} for one in report]


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("INT", 2), ("HUP", 1)])
def test_the_sender_of_a_signal_is_named(name: str, number: int) -> None:
    [received] = receive(f"kill -{name} {{pid}}; sleep 0.5; true")
    assert received["number"] == number
    assert received["sent_by_shell"]
    assert (received["user"], received["program"]) == (getpass.getuser(), "bash")
    assert received["stopping"] is False
    line = json.dumps({"signal": {key: received[key] for key in Received(1).to_dict()}})
    assert read_report(line.encode())["signal"]["program"] == "bash"


def test_a_signal_is_handled_once_even_if_a_thread_does_not_block_it() -> None:
    [received] = receive("kill -TERM {pid}; sleep 0.5; true", "thread")
    assert received["number"] == 15


def test_a_forwarded_signal_is_no_cause() -> None:
    parents = ancestors_of(os.getpid())
    assert os.getppid() in parents
    info = SimpleNamespace(si_signo=15, si_pid=os.getppid(), si_uid=os.getuid())
    assert read_sender(info, parents).internal
    assert not read_sender(info, ()).internal


def test_a_process_of_the_same_run_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(["sleep", "60"], env={"FTCLUSTER_RUN": "mrpc-1"})
    try:
        info = SimpleNamespace(si_signo=15, si_pid=other.pid, si_uid=os.getuid())
        monkeypatch.setenv("FTCLUSTER_RUN", "mrpc-1")
        assert read_sender(info, ()).internal
        monkeypatch.setenv("FTCLUSTER_RUN", "mrpc-2")
        assert not read_sender(info, ()).internal
    finally:
        other.kill()
        other.wait()


def test_a_sender_that_has_ended_or_is_in_no_passwd_has_only_numbers() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    for pid in (process.pid, OUTSIDE):
        received = read_sender(SimpleNamespace(si_signo=15, si_pid=pid, si_uid=4_000_000), ())
        assert (received.user, received.program, received.internal) == ("4000000", "", False)


@pytest.mark.parametrize(
    ("answer", "stops"),
    # recorded with systemd 252 on Debian 12 during a reboot, in this order
    [("running", False), ("degraded", False), ("stopping", True), ("unknown", None), ("", None)],
)
def test_a_host_that_shuts_down(
    answer: str, stops: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\n[ "$1" = is-system-running ] && echo {answer}\nexit 1\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(shutdown, "SYSTEMD", tmp_path)
    assert is_stopping() is stops
    init = tmp_path / "comm"
    init.write_text("systemd-shutdow\n")
    monkeypatch.setattr(shutdown, "INIT", init)
    assert is_stopping() is True
    monkeypatch.setattr(shutdown, "SYSTEMD", tmp_path / "none")
    assert is_stopping() is False
