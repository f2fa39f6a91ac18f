"""A supervisor that is killed, and a supervisor that is a systemd unit."""

import os
import pwd
import signal
import socket
import subprocess
import sys
import syslog
import tempfile
from functools import partial
from pathlib import Path

import pytest

from ftcluster_common.given_files import GivenFileError
from ftcluster_common.protocol.launch import read_launch
from ftcluster_train.errors import TrainError
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor import background
from ftcluster_train.supervisor import supervisor as supervisor_module
from ftcluster_train.supervisor.background import supervisor_of, unit_command
from ftcluster_train.supervisor.runs import read_run
from tests.programs import wait_for
from tests.unit.supervisor.test_restarts import started
from tests.unit.supervisor.test_supervisor import (
    errors,
    events,
    launch,
    parent_of,
    processes_of,
    supervisor,
    until_end,
)


def pid_of(run_dir: Path) -> int:
    wait_for(lambda: supervisor_of(run_dir))
    return int((run_dir / "supervisor.pid").read_text())


def kill(run_dir: Path, beside: bool = False) -> None:
    """Kill the supervisor once it has a rank, and the process that would restart it."""
    wait_for(lambda: processes_of(run_dir.name))
    pid = pid_of(run_dir)
    if beside:
        os.kill(parent_of(pid), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: supervisor_of(run_dir) != pid)


def test_a_host_that_was_started_again_is_told_from_a_killed_supervisor(tmp_path: Path) -> None:
    assert not background.was_rebooted(tmp_path)  # the first supervisor
    assert not background.was_rebooted(tmp_path)  # the first supervisor was killed
    (tmp_path / background.BOOT_FILE).write_text(background.this_boot().replace("-", "_"))
    assert background.was_rebooted(tmp_path)
    (tmp_path / "launch.json").write_text("{}")
    row = read_run(tmp_path, alive=False)
    assert (row.state, row.doing) == ("failed", "")  # nothing was launched
    (tmp_path / "launch.json").write_text('{"hosts": [{"name": "a", "ranks": [{}]}]}')
    assert read_run(tmp_path, alive=False).doing == "interrupted"
    EventWriter(tmp_path).write("end", state="failed", exit_code=1, seconds=1.0)
    assert read_run(tmp_path, alive=False).doing == ""


def test_the_hosts_own_log_has_what_one_looks_for_at_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, str]] = []
    monkeypatch.setattr(background.syslog, "syslog", lambda *words: said.append(words))
    writer = EventWriter(tmp_path, partial(background.log_event, "r-1"))
    writer.write("phase", doing="starting the ranks")
    writer.write("restart", restart=1, max_restarts=3, message="rank 1 on a: killed by signal 9")
    writer.write("error", message="out of memory\nat last", hint="", host="b", rank=2)
    writer.write("end", state="failed", exit_code=1, seconds=9.5)
    assert said == [
        (syslog.LOG_WARNING, "r-1: restart: rank 1 on a: killed by signal 9"),
        (syslog.LOG_ERR, "r-1: error: rank 2 on b: out of memory"),
        (syslog.LOG_ERR, "r-1: error:   at last"),
        (syslog.LOG_NOTICE, "r-1: end: state failed, exit_code 1, seconds 9.5"),
    ]


WAITS_AT_FIRST = '[ "$FTCLUSTER_RESTART" = 1 ] || exec sleep 300'


def test_a_killed_supervisor_takes_the_run_up(run_dir: Path) -> None:
    started(run_dir, WAITS_AT_FIRST, 3)
    kill(run_dir)
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("done", 0)
    took = float(str(end["time"])) - float(str(events(run_dir)[0]["time"]))
    assert abs(float(str(end["seconds"])) - took) < 0.5
    [restart] = [event for event in events(run_dir) if event["event"] == "restart"]
    assert (restart["restart"], restart["max_restarts"]) == (1, 3)
    assert str(restart["message"]).endswith("head: the supervisor was killed")
    assert processes_of(run_dir.name) == []
    assert read_launch(run_dir).restarts == 1


def test_a_stopped_supervisor_is_killed_and_another_takes_the_run_up(run_dir: Path) -> None:
    started(run_dir, WAITS_AT_FIRST, 3)
    wait_for(lambda: processes_of(run_dir.name))
    os.kill(pid_of(run_dir), signal.SIGSTOP)
    assert until_end(run_dir)["state"] == "done"
    assert processes_of(run_dir.name) == []
    assert read_launch(run_dir).restarts == 1


def test_stop_ends_a_run_whose_supervisor_is_stopped(run_dir: Path) -> None:
    started(run_dir, "sleep 300", 3)
    wait_for(lambda: processes_of(run_dir.name))
    pid = pid_of(run_dir)
    parent = parent_of(pid)
    os.kill(parent, signal.SIGKILL)  # no process kills or restarts the supervisor
    os.kill(pid, signal.SIGSTOP)
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert until_end(run_dir)["state"] == "stopped"
    assert processes_of(run_dir.name) == []


@pytest.mark.parametrize("alone", [False, True])
def test_force_ends_a_run_without_its_supervisor(run_dir: Path, alone: bool) -> None:
    started(run_dir, "sleep 300", 3)
    wait_for(lambda: processes_of(run_dir.name))
    pid = pid_of(run_dir)
    if alone:
        os.kill(parent_of(pid), signal.SIGKILL)
    os.kill(pid, signal.SIGSTOP)
    assert supervisor("stop", run_dir, "--force").stdout.splitlines()[0] == "stopped"
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("stopped", 143)
    assert processes_of(run_dir.name) == []
    wait_for(lambda: supervisor_of(run_dir) is None)
    lines = (run_dir / "events.jsonl").read_text()
    assert supervisor("stop", run_dir, "--force").stdout.splitlines()[0] == "not running"
    assert (run_dir / "events.jsonl").read_text() == lines


def test_systemd_gets_a_sign_of_life_and_programs_do_not_send_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        background.feed_watchdog()
        assert systemd.recv(100) == b"WATCHDOG=1"
    assert "NOTIFY_SOCKET" not in os.environ


def test_the_last_restart_is_used_up_and_said(run_dir: Path) -> None:
    started(run_dir, "sleep 300", 1)
    kill(run_dir)
    wait_for(lambda: read_launch(run_dir).restarts == 1)
    kill(run_dir)
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert error["message"] == "the supervisor was killed"
    assert processes_of(run_dir.name) == []


def test_a_run_goes_on_when_what_starts_its_supervisor_again_is_killed(run_dir: Path) -> None:
    started(run_dir, "sleep 1", 0)
    os.kill(parent_of(pid_of(run_dir)), signal.SIGKILL)
    assert until_end(run_dir)["state"] == "done"


def test_a_run_without_a_supervisor_is_started_again_and_one_with_it_is_not(run_dir: Path) -> None:
    started(run_dir, WAITS_AT_FIRST, 3)
    before = pid_of(run_dir)
    # the caller's current folder may be removed
    assert Path(f"/proc/{before}/cwd").readlink() == Path("/")
    supervisor("start", run_dir)
    assert pid_of(run_dir) == before
    kill(run_dir, beside=True)
    supervisor("start", run_dir)
    assert until_end(run_dir)["state"] == "done"
    lines = (run_dir / "events.jsonl").read_text()
    supervisor("start", run_dir)
    assert (run_dir / "events.jsonl").read_text() == lines


def test_a_run_that_is_not_prepared_gets_no_supervisor(tmp_path: Path) -> None:
    """Another control node prepares the run, or has lost its power meanwhile."""
    run_dir = tmp_path / "runs" / "mrpc-1"
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text("{}")
    (run_dir / "planned.json").write_text("{}")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        supervisor("start", run_dir)
    assert failed.value.returncode == 1
    [line] = failed.value.stderr.splitlines()
    assert line.startswith("mrpc-1 has no prepared model and data yet: ")
    # with a supervisor's files, the launch would count as a restart
    assert {path.name for path in run_dir.iterdir()} == {"job.json", "planned.json"}


def test_a_run_that_is_stopped_while_its_supervisor_is_gone_stays_so(run_dir: Path) -> None:
    launch(run_dir, "sleep 300")
    kill(run_dir, beside=True)
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "not running"
    supervisor("start", run_dir)
    assert until_end(run_dir)["state"] == "stopped"


def test_the_unit_is_the_accounts_and_has_its_limits() -> None:
    run_dir = Path("/opt/ftcluster/runs/r-1")
    limits = "# ours\nftcluster - nofile 65536\nftcluster - memlock 1024\nops - nofile 9\n"
    words = unit_command(run_dir, "/s/bin/python", "ftcluster", True, limits)
    assert words[0] == "systemd-run"
    assert words[-5:-3] == ("/s/bin/python", "-m")
    assert words[-2:] == ("supervise", str(run_dir))
    assert {
        "--unit=ftcluster-r-1",
        "--uid=ftcluster",
        "--setenv=PYTHONPYCACHEPREFIX=/opt/ftcluster/cache",
        "--property=Restart=on-abnormal",
        "--property=WatchdogSec=20",
        "--property=WatchdogSignal=SIGKILL",
        "--property=KillMode=mixed",
        "--property=OOMPolicy=continue",
        "--property=TimeoutStopSec=120",
        "--property=TasksMax=50%",
        "--property=WorkingDirectory=/",
        "--property=After=network.target",
        "--property=NoNewPrivileges=yes",
        "--property=LimitNOFILE=65536",
        "--property=LimitMEMLOCK=1024K",
    } < set(words)
    assert "--user" not in words
    unlimited = unit_command(run_dir, "p", "a", True, "a - memlock unlimited")
    assert "--property=LimitMEMLOCK=infinity" in unlimited
    own = unit_command(run_dir, "/s/bin/python", "", False, limits)
    assert own[1] == "--user"
    assert not any(
        word.startswith(("--uid", "--setenv", "--property=Limit", "--property=After"))
        for word in own
    )


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Write shell scripts that replace programs."""
    for name, script in scripts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_an_accounts_unit_needs_lingering(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(background, "SYSTEMD", tmp_path)
    monkeypatch.setattr(background, "LINGER", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    # the name of root, although the process has become nobody
    monkeypatch.setenv("LOGNAME", "root")
    programs(tmp_path, monkeypatch, systemd_run='echo "$1 no bus" >&2; exit 1')
    with pytest.raises(background.NoUnit, match="sudo loginctl enable-linger nobody"):
        background.start_unit(run_dir, "")
    (tmp_path / "nobody").touch()
    with pytest.raises(background.NoUnit, match="--user no bus"):
        background.start_unit(run_dir, "")
    programs(tmp_path, monkeypatch, systemd_run=f'echo "$XDG_RUNTIME_DIR" > {tmp_path}/folder')
    background.start_unit(run_dir, "")
    assert (tmp_path / "folder").read_text() == f"/run/user/{os.getuid()}\n"


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_that_logout_ends_says_so(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    programs(tmp_path, monkeypatch, busctl=f"echo b {str(ends).lower()}")
    background.say_why_no_unit(run_dir, "lingering is off")
    assert ["KillUserProcesses" in str(event["message"]) for event in events(run_dir)] == [
        True for _ in range(ends)
    ]


def test_the_number_of_a_supervisor_may_be_another_processs_by_now(run_dir: Path) -> None:
    (run_dir / "supervisor.pid").write_text(f"{os.getpid()}\n")
    assert supervisor_of(run_dir) is None


def test_somebody_elses_run_is_not_stopped_and_said_in_a_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Path) -> str:
        cause = PermissionError(13, "Permission denied")
        raise GivenFileError(f"{folder}/launch.json cannot be read: Permission denied") from cause

    monkeypatch.setattr(supervisor_module, "stop", denied)
    monkeypatch.setattr(sys, "argv", ["supervisor", "stop", str(run_dir)])
    with pytest.raises(
        SystemExit, match=r"launch\.json cannot be read: Permission denied; only its owner can"
    ):
        supervisor_module.main()


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["events.jsonl", "supervisor.pid", "launch.json"])
def test_root_reads_nothing_in_the_accounts_folder(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A FIFO blocks only the account, and a link leads it only to files that it may read."""
    account = pwd.getpwnam("nobody")
    monkeypatch.setattr(background, "START_SECONDS", 1.0)
    monkeypatch.setattr(background, "BACK_SECONDS", 0.0)
    monkeypatch.setattr(background, "start_unit", no_unit)
    with tempfile.TemporaryDirectory(prefix="ftcluster-test-") as folder:
        Path(folder).chmod(0o755)
        run_dir, secret = Path(folder) / "r-1", Path(folder) / "secret"
        secret.write_text('{"event": "end"}\n')  # root would consider the run ended
        secret.chmod(0o600)
        run_dir.mkdir()
        (run_dir / name).symlink_to(secret)
        os.chown(run_dir, account.pw_uid, account.pw_gid)
        assert supervisor_module.start(run_dir, account.pw_name) != 0
        (run_dir / name).unlink()
        (run_dir / name).touch()
        os.truncate(run_dir / name, 10 << 30)
        os.chown(run_dir / name, account.pw_uid, account.pw_gid)
        assert supervisor_module.start(run_dir, account.pw_name) != 0
        (run_dir / name).unlink()
        os.mkfifo(run_dir / name)
        os.chown(run_dir / name, account.pw_uid, account.pw_gid)
        if name == "launch.json":  # this is known to be a regular file
            assert supervisor_module.start(run_dir, account.pw_name) != 0
        else:
            with pytest.raises(TrainError, match="reading the run's files as"):
                supervisor_module.start(run_dir, account.pw_name)
        with pytest.raises(ChildProcessError):  # no child process remains
            os.waitpid(-1, os.WNOHANG)


def no_unit(_run_dir: Path, _user: str) -> None:
    raise background.NoUnit
