"""The life of a run on this machine: detach, list, show logs, follow, stop, fetch, remove."""

import contextlib
import json
import platform
import re
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.programs import HANG_SECONDS, wait_for
from tests.unit.supervisor.test_notifier import kept_by
from tests.unit.supervisor.test_notifier import server as server
from tests.unit.supervisor.test_supervisor import processes_of

PAIRS = "data=generated:train=480,validation=40,seed=1"  # a training that takes some seconds
SCRIPTS = Path(__file__).with_name("scripts")


def listed(machine: Machine, run: str) -> dict[str, Any]:
    done = machine.home.run("ps", "--all", "--json")
    assert done.returncode == 0, done.stderr
    return next(one for one in json.loads(done.stdout) if one["run"] == run)


def detached(machine: Machine, *command: str) -> str:
    done = machine.home.run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def listening(run: str) -> list[tuple[str, int]]:
    """Return the addresses, devices and ports on which the processes of a run listen."""
    own = {str(pid) for pid in processes_of(run)} | {str(supervisor_of_run(run))}
    table = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    return [
        (words[3].rpartition(":")[0], int(words[3].rpartition(":")[2]))
        for words in map(str.split, table.splitlines())
        if own & set(re.findall(r"pid=(\d+)", words[-1]))
    ]


def supervisor_of_run(run: str) -> int:
    words = subprocess.run(
        ["pgrep", "-f", f"supervisor.*/{run}$"], capture_output=True, text=True, check=True
    ).stdout.split()
    return max(map(int, words))


STRANGERS = (
    b"[" * 60_000 + b"\n",
    b'{"step": 1e999}\n',
    b"\xff\x00" * 4096,
    b"GET / HTTP/1.1\r\n\r\n",
    b"cmd=init pmi_version=1\n",
    b"",
)


def attack(run: str, events: Path) -> list[socket.socket]:
    """Send unexpected data to each port of a run; return connections that stay open."""
    wait_for(lambda: events.exists() and '"event": "step"' in events.read_text())
    found = listening(run)
    assert len(found) >= 2, found  # ports of the supervisor and of torch's store
    for address, port in found:  # other machines cannot reach these ports
        assert address.startswith("127.") or address.endswith("%lo"), (address, port)
    stay = []
    for _, port in found:
        for said in STRANGERS * 3:
            stay.append(socket.create_connection(("127.0.0.1", port), 5))
            with contextlib.suppress(OSError):  # the program has closed the connection
                stay[-1].sendall(said)
    return stay


def test_a_detached_run_among_strangers_is_followed_read_and_fetched(
    machine: Machine, tmp_path: Path
) -> None:
    run = detached(machine, "train", "quickstart", PAIRS, "batch_size=8", "--detach")
    folder = machine.home.prefix / "runs" / run
    strangers = attack(run, folder / "events.jsonl")
    attached = machine.home.run("attach", run, "--json")
    for stranger in strangers:
        stranger.close()
    assert attached.returncode == 0, attached.stderr
    document = json.loads(attached.stdout)
    assert (document["run"], document["state"]) == (run, "done")
    assert '"event": "restart"' not in (folder / "events.jsonl").read_text()
    assert "closed a connection from 127.0.0.1" in (folder / "supervisor.log").read_text()
    found = listed(machine, run)
    assert (found["state"], found["recipe"]) == ("done", "quickstart")
    assert found["hosts"] == ["localhost"]
    assert found["started_by"].endswith(f" on {platform.node()}")
    assert found["step"] == found["steps"] == document["steps"]
    model = tmp_path / "model"
    fetched = machine.home.run("fetch", run, str(model))
    assert fetched.returncode == 0, fetched.stderr
    for file in Path(document["model"]).iterdir():
        assert (model / file.name).read_bytes() == file.read_bytes()
    # refused, because the folder is not empty
    assert machine.home.run("fetch", run, str(model)).returncode == 1
    assert "[1] " in machine.home.run("logs", run).stdout


def test_the_end_of_a_detached_run_is_sent(machine: Machine, tmp_path: Path, server: Any) -> None:
    """The script fails, and nothing on this machine waits for it."""
    command, kept = kept_by(tmp_path)
    webhook = tmp_path / "webhook"
    webhook.write_text(f"{server.url}\n")
    script = ("--", str(SCRIPTS / "ends.py"), "3", "0")
    options = ("--notify", shlex.join(command), "--webhook", str(webhook), "--tag", "team=`id`")
    run = detached(machine, "run", "--detach", "--ranks-per-host", "1", *options, *script)
    folder = machine.home.prefix / "runs" / run
    wait_for(lambda: kept.exists() and server.bodies)
    heard = json.loads(kept.read_text())
    document = json.loads(heard["stdin"])
    assert (document["run"], document["event"], document["tags"]) == (run, "failed", "team=`id`")
    assert "exit code 3" in document["why"]
    assert server.bodies[0]["text"] == document["text"]
    assert "`id`" not in f"{heard['argv']}{heard['env']}"
    wait_for(lambda: not (folder / "webhook").exists())
    records = [folder, machine.home.folder / "state/ftcluster/runs" / run]
    texts = [path.read_text() for one in records for path in one.rglob("*") if path.is_file()]
    assert not [text for text in texts if "s3cret" in text]


def test_a_stopped_run_is_removed(machine: Machine) -> None:
    waits = ("--", str(SCRIPTS / "ends.py"), "0", "9")
    run = detached(machine, "run", "--detach", "--ranks-per-host", "2", *waits)
    folder = machine.home.prefix / "runs" / run
    wait_for((folder / "logs/rank-1.log").exists)
    attached = machine.home.start("attach", run)
    assert attached.stdout is not None
    assert any("rank 0 is here now" in line for line in attached.stdout)
    attached.terminate()  # as when a control node restarts, or with `timeout`
    _, said = attached.communicate(timeout=HANG_SECONDS)
    assert (attached.returncode, f"ftcluster attach {run}" in said) == (143, True)
    assert listed(machine, run)["state"] == "running"
    second = machine.home.run("train", "quickstart", *FEW_PAIRS)
    assert (second.returncode, f"run {run} of " in second.stderr) == (1, True)
    refused = machine.home.run("clean", run)
    assert (refused.returncode, "is running" in refused.stderr) == (1, True)
    stopped = machine.home.run("stop", run, "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["state"]) == (0, "stopped")
    assert machine.home.left_running() == []
    cleaned = machine.home.run("clean", run, "--json")
    assert json.loads(cleaned.stdout)["removed"] == [run]
    assert not folder.exists()
