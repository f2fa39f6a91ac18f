"""The supervisor with real processes; a shell script replaces mpirun."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcluster_common.protocol.launch import Launch, RankCores, RankHost, read_launch
from ftcluster_common.protocol.slurm import Queued
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.io.fsync import has_space
from ftcluster_train.supervisor import rank_environment
from ftcluster_train.supervisor import supervisor as supervisor_module
from ftcluster_train.supervisor.background import wait_for_space
from tests.programs import NODE_PATH, wait_for

CORES = (RankCores("0", 1),)
NODES = [
    RankHost(f"node{number}", address, CORES)
    for number, address in enumerate(("127.0.0.1", "10.0.0.12", "10.0.0.13"), 1)
]
# the program's last argument is a script that replaces mpirun; without this setting, ranks that do
# not end would cost a test the whole grace period
IMPATIENT = """
import sys
from dataclasses import replace
from pathlib import Path
from ftcluster_train.supervisor import rank_launch, supervisor
render = rank_launch.mpirun_command
def script(launch):
    command = render(launch)
    ranks = str(len(launch.rank_hosts))
    argv = ("/bin/bash", "-c", launch.program[-1], "mpirun", "-n", ranks)
    return replace(command, argv=argv)
rank_launch.mpirun_command = script
supervisor.processes.GRACE_SECONDS = 1.0
supervisor.background.SYSTEMD = Path("/none")
supervisor.background.PAUSE_SECONDS = 0.1
supervisor.background.BACK_SECONDS = 1.0
supervisor.background.WATCHDOG_SECONDS = 1.0
sys.exit(supervisor.main())
"""


def supervisor(
    verb: str, run_dir: Path, *options: str, site_packages: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, verb, str(run_dir), *options],
        env={**os.environ, "PYTHONPATH": f"{NODE_PATH}:{site_packages}", "SECRET": "s3cret"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def launch(
    run_dir: Path,
    mpirun: str,
    token: str = "",
    site_packages: str = "",
    env: Mapping[str, str] | None = None,
    hosts: Sequence[RankHost] = NODES[:1],
    **fields: Any,
) -> None:
    """Launch a shell script instead of mpirun by a supervisor."""
    started = Launch(
        run_dir=str(run_dir),
        program=(mpirun,),
        env={"FTCLUSTER_RUN": run_dir.name, **(env or {})},
        hosts=tuple(hosts),
        ssh_config="/opt/mesh/ssh_config" if len(hosts) > 1 else "",
        stack="/opt/ftcluster/current",
        **{"grace_seconds": 2.0, **fields},
    )
    (run_dir / "launch.json").write_text(json.dumps(started.to_dict()))
    for name, text in {"guard": "secret\n", **({"hub_token": token} if token else {})}.items():
        (run_dir / name).write_text(text)
        (run_dir / name).chmod(0o600)
    supervisor("start", run_dir, site_packages=site_packages)


def events(run_dir: Path) -> list[dict[str, object]]:
    path = run_dir / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
    return [json.loads(line) for line in whole.splitlines()]


def until_end(run_dir: Path) -> dict[str, object]:
    wait_for(lambda: events(run_dir)[-1:] and events(run_dir)[-1]["event"] == "end")
    return events(run_dir)[-1]


def errors(run_dir: Path) -> list[dict[str, object]]:
    return [event for event in events(run_dir) if event["event"] == "error"]


def notices(run_dir: Path) -> list[str]:
    kinds = ("notice", "restart")
    return [str(event["message"]) for event in events(run_dir) if event["event"] in kinds]


def processes_of(run: str) -> list[int]:
    mark = f"FTCLUSTER_RUN={run}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ssh_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script on PATH that replaces ssh."""
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")


# a script that replaces ssh: the head reaches its host, which grants a run the lease
LEASE = (
    'case "$*" in *ftcluster-reached) exec echo ftcluster-reached;; '
    "*host.lease*) while read -r _; do echo held; done; exit;; esac"
)


@pytest.mark.needs("mount")
def test_the_end_is_written_once_a_full_disk_has_space(run_dir: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", run_dir], check=True)
    filler = run_dir / "filler"
    # includes the last page of the events
    script = (
        "cd $RUN_DIR; size=$(stat -c %s events.jsonl); "
        """printf '{"event": "notice", "message": "%*s"}\\n' $((8192 - 35 - size % 4096)) x """
        ">> events.jsonl; cat /dev/zero > filler; exit 1"
    )
    try:
        launch(run_dir, script, env={"RUN_DIR": str(run_dir)})
        wait_for(lambda: filler.exists() and filler.stat().st_size > 3 << 20)
        wait_for(lambda: len(processes_of(run_dir.name)) < 2)  # mpirun has ended
        time.sleep(0.5)  # the time after which the supervisor would have written the end
        filler.unlink()
        assert until_end(run_dir)["state"] == "failed"
        assert not [*run_dir.glob(".*.partial")]
    finally:
        subprocess.run(["umount", "--lazy", run_dir], check=True)


@pytest.mark.needs("mount")
def test_a_disk_without_inodes_is_full_too(run_dir: Path) -> None:
    """A user's quota has the same effect: some bytes are free."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=4", "tmpfs", run_dir], check=True
    )
    try:
        assert has_space(run_dir)
        for name in "abc":
            (run_dir / name).touch()
        assert not has_space(run_dir)
        threading.Timer(1, (run_dir / "a").unlink).start()
        began = time.monotonic()
        wait_for_space(run_dir)
        assert time.monotonic() - began > 0.9
    finally:
        subprocess.run(["umount", "--lazy", run_dir], check=True)


def test_a_good_run_ends_done(run_dir: Path) -> None:
    launch(run_dir, "echo hello; env")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("done", 0)
    said = (run_dir / "ranks.log").read_text()
    assert "hello" in said
    assert "MASTER_PORT=" in said
    assert "s3cret" not in said  # only variables that the ranks need are passed on


def test_a_failed_run_tells_its_last_words(run_dir: Path) -> None:
    launch(run_dir, "echo something broke; exit 3")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("failed", 3)
    [error] = errors(run_dir)
    assert "something broke" in str(error["message"])


def test_a_ranks_error_is_passed_on_and_the_other_ranks_are_ended(run_dir: Path) -> None:
    line = error_line(TrainError("the data is odd", "mend it"))
    launch(run_dir, f"setsid sleep 300 & echo '[1] {line}'; wait")
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert (error["message"], error["hint"]) == ("the data is odd", "mend it")
    assert processes_of(run_dir.name) == []


def test_a_ranks_lines_are_whole_however_mpirun_cut_them(run_dir: Path) -> None:
    def say(rank: int, text: str) -> str:
        return f"[{run_dir.name} {rank}] {text}"

    pieces = [say(0, "File "), say(1, "Current "), say(0, '"a.py"'), say(1, "thread\\n")]
    launch(run_dir, f"printf '{''.join(pieces)}{say(0, ', line 3')}'")
    assert until_end(run_dir)["state"] == "done"
    whole = '[1] Current thread\n[0] File "a.py", line 3\n'
    assert (run_dir / "ranks.log").read_text() == whole
    assert (run_dir / "logs/rank-0.log").read_text() == 'File "a.py", line 3\n'
    assert (run_dir / "logs/rank-1.log").read_text() == "Current thread\n"


def test_stop_ends_everything_and_says_so(run_dir: Path) -> None:
    launch(run_dir, "trap '' TERM; setsid sleep 300 & sleep 300 & wait")
    wait_for(lambda: processes_of(run_dir.name))
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert events(run_dir)[-1]["state"] == "stopped"
    assert processes_of(run_dir.name) == []
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "not running"


def test_a_host_that_the_mesh_does_not_reach_ends_the_run_before_a_rank_starts(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    ssh_on_path(
        tmp_path,
        monkeypatch,
        '[ "$3" = 10.0.0.12 ] || exec sh -c "$4"\n'
        "echo 'ssh: connect to host 10.0.0.12 port 22: Connection refused' >&2\n"
        "exit 255",
    )
    launch(run_dir, f"touch {started}", hosts=NODES)
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("failed", 1)
    [error] = errors(run_dir)
    assert error["host"] == "node2"
    assert str(error["hint"]).startswith("no rank was started; check that it is on")
    assert "Connection refused" in str(error["message"])
    assert not started.exists()


def test_stop_while_a_host_does_not_answer(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, pid = tmp_path / "started", tmp_path / "pid"
    ssh_on_path(tmp_path, monkeypatch, f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600")
    # ssh may take longer than this test waits for the end
    launch(run_dir, f"touch {started}", hosts=NODES[:2], timeout_seconds=600.0)
    wait_for(pid.exists)
    try:
        os.kill(int((run_dir / "supervisor.pid").read_text()), signal.SIGTERM)
        end = until_end(run_dir)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (end["state"], end["exit_code"]) == ("stopped", 143)
    assert errors(run_dir) == []
    assert not started.exists()


CCL = {"FTCLUSTER_BACKEND": "ccl", "CCL_WORKER_COUNT": "1"}


def test_ranks_get_the_environment_of_oneccl(run_dir: Path, tmp_path: Path) -> None:
    setvars = tmp_path / "oneccl_bindings_for_pytorch" / "env" / "setvars.sh"
    setvars.parent.mkdir(parents=True)
    (setvars.parents[1] / "__init__.py").touch()
    setvars.write_text(
        "export CCL_ROOT=/ccl CCL_WORKER_COUNT=9 LD_LIBRARY_PATH=/ccl/lib PATH=/ccl/bin:$PATH\n"
    )
    launch(run_dir, "env", site_packages=str(tmp_path), env=CCL)
    assert until_end(run_dir)["state"] == "done"
    lines = (run_dir / "ranks.log").read_text().splitlines()
    assert {"CCL_ROOT=/ccl", "LD_LIBRARY_PATH=/ccl/lib"} < set(lines)
    assert "CCL_WORKER_COUNT=1" in lines  # the plan has precedence over the script
    # the stack's folder stays before the binding's folder
    assert any(line.startswith(f"PATH={sys.prefix}/bin:/ccl/bin:") for line in lines)


def test_the_supervisor_outlives_its_starters_terminal(run_dir: Path) -> None:
    launch(run_dir, "sleep 300")
    pid = int((run_dir / "supervisor.pid").read_text())
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGTERM)
    assert until_end(run_dir)["state"] == "stopped"


def test_other_users_can_read_nothing_of_a_run(run_dir: Path) -> None:
    before = os.umask(0)
    try:
        launch(run_dir, f"mkdir {run_dir}/made; touch {run_dir}/made/file; echo hello")
        until_end(run_dir)
    finally:
        os.umask(before)
    left = [path for path in run_dir.rglob("*") if path.name != "launch.json"]
    assert {"events.jsonl", "ranks.log", "supervisor.log"} <= {path.name for path in left}
    assert [path for path in left if path.stat().st_mode & 0o027] == []


# stores its arguments and its input, as the other hosts would
HOSTS = LEASE + '\necho "$@" >> "{folder}/argv"; cat >> "{folder}/$3.stdin"'


def test_ranks_have_the_token_for_as_long_as_they_run(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_on_path(tmp_path, monkeypatch, HOSTS.format(folder=tmp_path))
    file = run_dir / "hub_token"
    commands = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n'"
    script = f"stat -c %a {file}; cat {file}; env; echo; {commands}"
    launch(run_dir, script, token="hf_s3cret", hosts=NODES)
    assert until_end(run_dir)["state"] == "done"
    said = (run_dir / "ranks.log").read_text()
    assert said.startswith("600\nhf_s3cret")
    assert said.count("hf_s3cret") == 1, "in the file, not in the environment nor in arguments"
    for host in NODES[1:]:
        assert (tmp_path / f"{host.address}.stdin").read_text() == "hf_s3cret"
    asked = (tmp_path / "argv").read_text()
    assert asked.count(f"umask 077 && cat > {file}\n") == 2
    assert asked.count(f"rm -f {file}\n") == 2
    assert "hf_s3cret" not in asked
    (run_dir / "ranks.log").unlink()  # the test itself put the log there
    assert not any("hf_s3cret" in path.read_text() for path in run_dir.iterdir())


def test_a_token_does_not_outlast_a_run_that_is_stopped(run_dir: Path) -> None:
    launch(run_dir, "sleep 300", token="hf_s3cret")
    wait_for((run_dir / "hub_token").exists)
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert not (run_dir / "hub_token").exists()


@pytest.mark.parametrize(
    ("name", "variable"),
    [("hub_token", "HF_TOKEN_PATH"), ("secret_env", "FTCLUSTER_SECRET_ENV")],
)
def test_ranks_wait_for_the_token_that_comes_once_there_is_a_supervisor(
    run_dir: Path, name: str, variable: str
) -> None:
    file = run_dir / name
    launch(run_dir, f"cat {file}", env={variable: str(file)})
    wait_for((run_dir / "supervisor.pid").exists)
    assert not (run_dir / "ranks.log").exists()
    (run_dir / "whole").write_text("hf_s3cret")
    (run_dir / "whole").rename(file)
    assert until_end(run_dir)["state"] == "done"
    assert (run_dir / "ranks.log").read_text().strip() == "hf_s3cret"
    assert not file.exists()


def test_a_run_whose_token_does_not_come_is_ended(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run_dir / "hub_token"
    launch(run_dir, "sleep 300", env={"HF_TOKEN_PATH": str(file)})
    wait_for((run_dir / "supervisor.pid").exists)
    (run_dir / ".ftcluster-0f").write_text("hf_s3")  # written by a process that was killed
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert not (run_dir / ".ftcluster-0f").exists()
    monkeypatch.setattr(rank_environment, "ARRIVAL_SECONDS", 0)
    request: Any = SimpleNamespace(check=lambda: None)
    with pytest.raises(TrainError, match="the token for the Hub has not arrived"):
        rank_environment.take_secrets(read_launch(run_dir), request)


def test_a_token_of_a_supervisor_that_was_killed_goes_with_stop_and_sweep(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_on_path(tmp_path, monkeypatch, HOSTS.format(folder=tmp_path))
    launch(run_dir, "sleep 300", token="hf_s3cret", hosts=NODES)
    wait_for((run_dir / "ranks.log").exists)
    supervisor_pid = int((run_dir / "supervisor.pid").read_text())
    os.kill(parent_of(supervisor_pid), signal.SIGKILL)  # no process restarts it
    os.kill(supervisor_pid, signal.SIGKILL)
    assert (run_dir / "hub_token").exists()
    while supervisor("stop", run_dir).stdout.splitlines()[0] != "not running":
        pass
    assert not (run_dir / "hub_token").exists()
    assert (tmp_path / "argv").read_text().count("rm -f ") == 2
    (run_dir / "hub_token").touch()
    supervisor("sweep", run_dir)
    assert not (run_dir / "hub_token").exists()
    assert processes_of(run_dir.name) == []


def test_a_host_that_cannot_take_the_token_ends_the_run_before_a_rank_starts(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    full = LEASE + "\ncase $* in *10.0.0.13*cat*) echo 'No space left on device' >&2; exit 1;; esac"
    ssh_on_path(tmp_path, monkeypatch, full)
    launch(run_dir, f"touch {started}", token="hf_s3cret", hosts=NODES)
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert error["host"] == "node3"
    assert "token for the Hub cannot be written: No space left on device" in str(error["message"])
    assert not (run_dir / "hub_token").exists()
    assert not started.exists()


def test_a_run_of_a_slurm_job_is_supervised_on_its_first_node_only(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    for node in ("node2", "node1"):
        monkeypatch.setenv("SLURMD_NODENAME", node)
        refused = subprocess.CalledProcessError if node == "node2" else ()
        with contextlib.suppress(refused):
            launch(run_dir, "exit 0", slurm_job="12", hosts=NODES[:1])
        assert (run_dir / "supervisor.pid").exists() == (node == "node1")
    assert until_end(run_dir)["state"] == "done"


def test_a_command_to_copy_is_one_command_whatever_others_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launch.json may be shared, and squeue prints others' text."""
    planted = tmp_path / "planted"
    hostile = f'1; touch {planted} #$(touch {planted})`touch {planted}`\n\'"touch {planted}"'
    run = tmp_path / "run-1"
    run.mkdir()
    host = RankHost(hostile, "10.0.0.1", CORES)
    launch = Launch(str(run), (), {}, (host,), "", "/stack", slurm_job=hostile)
    (run / "launch.json").write_text(json.dumps(launch.to_dict()))
    monkeypatch.setattr(supervisor_module, "job_in_queue", lambda _: Queued(hostile, "RUNNING"))
    message = supervisor_module.slurm_elsewhere(run)
    follow, _, stop = message.partition("follow it with ")[2].rpartition(", or stop it with ")
    assert shlex.split(follow) == [
        "srun", f"--jobid={hostile}", "--overlap", "--nodes=1", f"--nodelist={hostile}", "--pty",
        "ftcluster", "attach", "run-1",
    ]  # fmt: skip
    assert shlex.split(stop) == ["scancel", hostile]
    stand_ins = "srun() { :; }; scancel() { :; }"
    subprocess.run(["sh", "-c", f"{stand_ins}\n{follow}\n{stop}"], check=True)
    assert not planted.exists()
