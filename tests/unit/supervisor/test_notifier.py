"""Notifications about a run: a command and a server that keep what they get.

The supervisor is real; a shell script stands in for mpirun, as in test_supervisor.py.
"""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common import delivery
from ftcluster_common.protocol.launch import TAGS_VARIABLE, WEBHOOK_FILE
from ftcluster_train.io.processes import is_running
from tests.programs import wait_for
from tests.unit.supervisor.test_supervisor import (
    events,
    launch,
    notices,
    parent_of,
    processes_of,
    supervisor,
    until_end,
)

ATTACK = "team=$(touch${IFS}/tmp/owned);`id`'\"<!channel>\u202e"
# keeps its stdin, arguments and environment
KEEPS = """
import json, os, sys
heard = {"argv": sys.argv, "env": dict(os.environ), "stdin": sys.stdin.read()}
with open(sys.argv[1] + ".partial", "w") as file:
    json.dump(heard, file)
os.rename(sys.argv[1] + ".partial", sys.argv[1])
"""


@pytest.fixture
def server() -> Iterator[Any]:
    """A server on loopback that keeps each body it gets, and answers with `status`."""
    bodies: list[dict[str, Any]] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append({"path": self.path, **json.loads(body)})
            time.sleep(keeper.delay)
            self.send_response(keeper.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    keeper: Any = ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    keeper.status, keeper.delay, keeper.bodies = 200, 0.0, bodies
    keeper.url = f"http://127.0.0.1:{keeper.server_port}/s3cret"
    threading.Thread(target=keeper.serve_forever, daemon=True).start()
    yield keeper
    keeper.shutdown()
    keeper.server_close()


def kept_by(folder: Path) -> tuple[tuple[str, ...], Path]:
    """A command that keeps what it gets, and the file that has it then."""
    return (sys.executable, "-c", KEEPS, str(folder / "kept")), folder / "kept"


def command_of(run_dir: Path) -> int:
    """Return the supervisor's command, once it leads a process group of its own.

    The kernel lists a child from its fork, but `setsid` runs only afterwards.
    """
    pid = int((run_dir / "supervisor.pid").read_text())
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(lambda: any(os.getpgid(int(one)) == int(one) for one in children.read_text().split()))
    [process] = [int(one) for one in children.read_text().split()]
    return process


def with_webhook(run_dir: Path, url: str) -> None:
    (run_dir / WEBHOOK_FILE).write_text(f"{url}\n")


def delivered(run_dir: Path) -> list[tuple[str, str]]:
    found = [event for event in events(run_dir) if event["event"] == "notified"]
    return [(str(event["about"]), str(event["by"])) for event in found]


def test_a_command_and_a_server_get_the_end_of_a_run(
    run_dir: Path, tmp_path: Path, server: Any
) -> None:
    command, kept = kept_by(tmp_path)
    result = {"event": "result", "time": 1.0, "model": "/m", "metrics": {"accuracy": 0.9},
              "samples_per_second": 1.0, "train_seconds": 1.0, "world_size": 1}  # fmt: skip
    events_file = shlex.quote(str(run_dir / "events.jsonl"))
    script = f"echo {shlex.quote(json.dumps(result))} >> {events_file}"
    with_webhook(run_dir, server.url)
    launch(run_dir, script, notify=command, webhook=True, env={TAGS_VARIABLE: ATTACK})
    wait_for(lambda: len(delivered(run_dir)) == 2)
    assert delivered(run_dir) == [("done", "command"), ("done", "webhook")]
    [end] = [event for event in events(run_dir) if event["event"] == "end"]
    assert end["state"] == "done"
    heard = json.loads(kept.read_text())
    document = json.loads(heard["stdin"])
    names = ("event", "state", "run", "tags", "model", "metrics", "head", "doing")
    assert {name: document[name] for name in names} == {
        "event": "done", "state": "done", "run": run_dir.name, "tags": ATTACK, "model": "/m",
        "metrics": {"accuracy": 0.9}, "head": "node1", "doing": "",
    }  # fmt: skip
    assert document["text"].startswith(f"{run_dir.name} is done after 0:00:0")
    # foreign text is in stdin alone; the command gets no variable of the run, and no secret
    assert ATTACK not in f"{heard['argv']} {heard['env']}"
    assert not [name for name in heard["env"] if "FTCLUSTER" in name or "SECRET" in name]
    [body] = server.bodies
    assert {name: body[name] for name in names} == {name: document[name] for name in names}
    # the address is in no file of the run, also in none of its logs
    wait_for(lambda: not (run_dir / WEBHOOK_FILE).exists())
    texts = [path.read_text() for path in run_dir.rglob("*") if path.is_file()]
    assert not [text for text in texts if "s3cret" in text]


def test_a_failed_and_a_stopped_run(run_dir: Path, tmp_path: Path) -> None:
    command, kept = kept_by(tmp_path)
    launch(run_dir, "echo '<b>broke' ; exit 3", notify=command)
    wait_for(kept.exists)
    document = json.loads(json.loads(kept.read_text())["stdin"])
    assert (document["event"], document["state"]) == ("failed", "failed")
    assert document["why"] in document["text"]
    kept.unlink()
    other = run_dir.with_name(f"{run_dir.name}-b")
    other.mkdir()
    launch(other, "sleep 300", notify=command)
    wait_for(lambda: processes_of(other.name))
    assert supervisor("stop", other).stdout.splitlines()[0] == "stopped"
    wait_for(kept.exists)
    document = json.loads(json.loads(kept.read_text())["stdin"])
    assert (document["event"], document["state"]) == ("stopped", "stopped")
    assert "ftcluster stop" in document["why"]


def test_a_run_that_waits_for_its_host_notifies_once(run_dir: Path, tmp_path: Path) -> None:
    command, kept = kept_by(tmp_path)
    first = run_dir.with_name(f"{run_dir.name}-a")
    first.mkdir()
    launch(first, "sleep 300")
    wait_for(lambda: processes_of(first.name))
    launch(run_dir, "true", notify=command, wait=True)
    wait_for(kept.exists)
    document = json.loads(json.loads(kept.read_text())["stdin"])
    assert (document["event"], document["state"]) == ("waiting", "running")
    assert document["doing"].startswith("waiting (place 1 in the queue): node1")
    assert document["text"] == f"{run_dir.name} is {document['doing']}"
    supervisor("stop", first)
    wait_for(lambda: len(delivered(run_dir)) == 2)
    assert delivered(run_dir) == [("waiting", "command"), ("done", "command")]


def test_slurm_ends_no_job_before_its_notification(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    command, kept = kept_by(tmp_path)
    launch(run_dir, "exit 3", notify=command, slurm_job="7")
    until_end(run_dir)
    assert [event["event"] for event in events(run_dir)][-2:] == ["notified", "end"]
    document = json.loads(json.loads(kept.read_text())["stdin"])
    assert (document["event"], document["state"], document["doing"]) == ("failed", "failed", "")
    assert "exit code 3" in document["why"]


def test_a_failed_notification_is_a_notice_and_the_run_is_done(run_dir: Path, server: Any) -> None:
    server.status = 302
    with_webhook(run_dir, server.url)
    failing = ("/bin/sh", "-c", "echo no mail server >&2; exit 7")
    launch(run_dir, "true", notify=failing, webhook=True)
    wait_for(lambda: len(notices(run_dir)) == 2)
    assert notices(run_dir) == [
        "--notify: the notification that the run is done has failed: exit code 7: no mail server",
        "--webhook: the notification that the run is done has failed: the server responded with "
        "HTTP status 302",
    ]
    assert len(server.bodies) == 1  # a redirect is not followed
    assert [event["state"] for event in events(run_dir) if event["event"] == "end"] == ["done"]
    other = run_dir.with_name(f"{run_dir.name}-b")
    other.mkdir()
    launch(other, "true", notify=("no-such-program",))
    wait_for(lambda: len(notices(other)) == 2)
    missing, failed = notices(other)
    assert "node1 has no program no-such-program" in missing  # known from the beginning
    assert "No such file" in failed


def test_a_slow_command_delays_neither_the_end_nor_stop(run_dir: Path) -> None:
    launch(run_dir, "sleep 300", notify=("/bin/sleep", "300"))
    wait_for(lambda: processes_of(run_dir.name))
    began = time.monotonic()
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert time.monotonic() - began < 20
    assert until_end(run_dir)["state"] == "stopped"
    os.killpg(command_of(run_dir), signal.SIGKILL)


def test_a_command_has_a_time_limit_and_a_server_too(server: Any) -> None:
    began = time.monotonic()
    problem = delivery.run_command(["sh", "-c", "sleep 60 & wait"], {}, 0.2)
    assert problem == "it did not end within 0.2 s"
    server.delay = 5.0
    problem = delivery.post(server.url, {"text": ""}, 0.2)
    assert problem == "the server did not respond: TimeoutError"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/s3cret",
        "http://127.0.0.1:bad/s3cret",
        "http://[s3cret",
        "https://\x7f/s3cret",
    ],
)
def test_no_failure_names_the_address(url: str) -> None:
    problem = delivery.post(url, {"text": ""}, 1)
    assert problem
    assert "s3cret" not in problem


def test_chats_read_no_markup_in_the_text(server: Any) -> None:
    assert delivery.post(server.url, {"text": "a <!channel> & b", "why": "<b>"}) == ""
    [body] = server.bodies
    assert (body["text"], body["why"]) == ("a &lt;!channel&gt; &amp; b", "<b>")


def test_a_supervisor_that_was_killed_after_the_end_runs_nothing_again(run_dir: Path) -> None:
    launch(run_dir, "echo started >> $RUN_DIR/starts", notify=("/bin/sleep", "300"),
           env={"RUN_DIR": str(run_dir)}, max_restarts=3)  # fmt: skip
    until_end(run_dir)
    command = command_of(run_dir)
    pid = int((run_dir / "supervisor.pid").read_text())
    starter = parent_of(pid)
    os.kill(pid, signal.SIGKILL)
    os.killpg(command, signal.SIGKILL)
    wait_for(lambda: not is_running(starter))  # it has started another supervisor, which has ended
    assert (run_dir / "starts").read_text() == "started\n"
    assert [event["event"] for event in events(run_dir)].count("end") == 1
