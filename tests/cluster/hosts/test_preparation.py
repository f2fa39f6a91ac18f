"""Trainings whose preparation or control node ends before the launch."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.io.activity import descendants
from tests.cluster.cluster import PREFIX, TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD, OTHER
from tests.cluster.rows import pair, write_rows
from tests.faults.observe import HOST, Process, oom_kill
from tests.faults.places import Hosts
from tests.programs import wait_for

ROWS = "data=generated:train=160,validation=40,seed=97"  # no other test has prepared these rows


def begin(cluster: Cluster, name: str) -> "subprocess.Popen[str]":
    """Start a training with this name; return while its model and data are being prepared."""
    words = (ROWS, "training.max_steps=2", "--name", name)
    process = cluster.control.start("train", "quickstart", *TWO, *words)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("prepare model and data"):
            return process
    raise AssertionError(f"{name} was not prepared")


def preparation(name: str, host: str) -> Process | None:
    """Return the process that prepares a training on a host; None if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            place = HOST.search((folder / "cgroup").read_text())
            is_there = place is not None and place[1] == host
            if is_there and "ftcluster_train.engine.prepare" in words and name in words[-2]:
                return Process(int(folder.name), 0, host, "other", None, None, " ".join(words))
    return None


def kill(process: "subprocess.Popen[str]") -> None:
    """End a command and all its processes here, as a control node does that loses its power."""
    for pid in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_a_preparation_that_is_out_of_memory_is_named_with_its_host(cluster: Cluster) -> None:
    process = begin(cluster, "hungry")
    wait_for(lambda: preparation("/runs/hungry-", OTHER))
    victim = preparation("/runs/hungry-", OTHER)
    assert victim is not None
    group = oom_kill(victim)
    try:
        _, stderr = process.communicate(timeout=300)
    finally:
        group.rmdir()
    assert process.returncode == 1, stderr
    message = "engine.prepare was killed by the kernel: the host is out of memory"
    assert f"{OTHER}: {message}" in stderr
    assert "does not start" not in stderr, "the stack is not to blame"
    no_rank_is_left(cluster)


def test_a_run_whose_control_node_lost_its_power_is_launched_by_another_one(
    cluster: Cluster,
) -> None:
    control = cluster.control
    kill(begin(cluster, "unplugged"))
    runs = control.shell(HEAD, "ls /opt/ftcluster/runs").split()
    [run] = [name for name in runs if name.startswith("unplugged-")]
    folder = f"/opt/ftcluster/runs/{run}"
    early = control.run("attach", run)  # the preparation continues without a control node
    if early.returncode != 0:
        assert f"{run} has no prepared model and data yet" in early.stderr
        assert "Traceback" not in early.stderr
        wait_for(lambda: "launch.json" in control.shell(HEAD, f"ls {folder}"))
        attached = control.run("attach", run)
        assert attached.returncode == 0, attached.stderr
    events = control.shell(HEAD, f"cat {folder}/events.jsonl")
    assert '"state": "done"' in events
    assert '"event": "restart"' not in events
    no_rank_is_left(cluster)


def test_a_head_that_does_not_respond_is_the_only_one_to_blame(cluster: Cluster) -> None:
    control = cluster.control
    control.bed.cut(HEAD)
    try:
        done = control.run("train", "quickstart", *TWO, ROWS)
    finally:
        control.bed.heal(HEAD)
    assert done.returncode == 1, done.stdout
    assert f"{HEAD}: ssh does not connect" in done.stderr
    assert f"{OTHER}: the head, {HEAD}, does not respond" in done.stderr
    assert "HostVars" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("moment", ["copies", "fetches", "launches"])
def test_a_command_that_was_killed_works_when_it_is_repeated(
    cluster: Cluster, tmp_path: Path, moment: str
) -> None:
    """Kill the command while it copies data, while hosts fetch the model, or before the launch."""
    control, prefix = cluster.control, Path(PREFIX)
    place = Hosts(control)

    def has(host: str, pattern: str) -> list[Path]:
        return sorted(place.path(host, prefix).glob(pattern))

    data = write_rows(tmp_path / f"rows-{moment}", pair, train=30_000, validation=40)  # 2 MB
    name = f"killed-{moment}"
    command = ("train", "quickstart", *TWO, "--data", str(data), "training.max_steps=2")
    command = (*command, "--name", name)
    is_now: Callable[[], object] = {
        "copies": lambda: has(OTHER, f"data/{data.name}-*.new-*"),
        "fetches": lambda: has(OTHER, "models/.*.scratch"),
        "launches": lambda: has(HEAD, f"runs/{name}-*/launch.json"),
    }[moment]
    for host in (HEAD, OTHER):
        control.shell(host, f"rm -rf {prefix}/models/*")
    slow = (HEAD, OTHER) if moment == "copies" else ()
    for host in slow:
        control.bed.shape(host, "2mbit")
    try:
        process = control.start(*command)
        wait_for(is_now)
        kill(process)
    finally:
        for host in slow:
            control.bed.shape(host, "off")
    [row] = (row for row in listed(cluster) if row["run"].startswith(name))
    if moment == "copies":
        assert (row["state"], row["why"]) == ("running", "")  # until the copy is known to be dead
        later = "-exec touch --date='1 minute ago' {} +"
        for host in slow:
            control.shell(host, f"find {prefix}/data/*.new-* {later}")
        [row] = (row for row in listed(cluster) if row["run"].startswith(name))
        assert row["state"] == "failed"
        assert row["why"].startswith("it was not launched, and no files are being copied for it:")
    elif row["state"] != "running":  # until model and data are prepared
        assert (row["state"], row["doing"]) == ("failed", "interrupted")
    again = control.run(*command, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["state"] == "done"
    wait_for(lambda: all(row["state"] != "running" for row in listed(cluster)))
    for host in (HEAD, OTHER):
        assert has(host, "models/.*.scratch") + has(host, "cache/**/.*.scratch") == []
        [model] = has(host, "models/gt-*")
        assert (model / "model.safetensors").stat().st_size > 10**7
        assert len(has(host, f"data/{data.name}-*[0-9a-f]")) == 1 + (moment == "copies")
    cleaned = control.run("clean", row["run"], "--json")
    assert json.loads(cleaned.stdout)["removed"] == [row["run"]], cleaned.stderr
    no_rank_is_left(cluster)


def listed(cluster: Cluster) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cluster.control.run("ps", "--json").stdout)
    return rows
