"""Real commands with a head whose node package, its own or an attacker's, returns anything."""

import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch.record import begin_record, record_dir
from ftcluster_common.protocol.run_state import RunState, pack
from tests.fuzz.parsers import EVENTS_SEEN
from tests.unit.clusters import VM, cluster
from tests.unit.shell import Shell

RUN = "quickstart-20260131-101500-7f3a"
STATE = RunState(RUN, "failed", "quickstart", ("localhost",), 1, 0, 9, time.time() - 99, 5.0, "")
ROW = {**asdict(STATE), "hosts": ["localhost"]}


class Head:
    """This machine as the head, with a program in place of the stack's Python."""

    def __init__(self, folder: Path) -> None:
        self.prefix, self.folder = folder / "prefix", folder
        python = self.prefix / f"stacks/{VM.stack}-1/bin/python"
        python.parent.mkdir(parents=True)
        (self.prefix / "current").symlink_to(python.parents[1])
        python.write_text(
            # Ansible's call stores the program, which the next call runs
            f'#!/bin/sh\ncase "$1$2$3" in *-c) exec {sys.executable} "$@";; esac\n'
            f'for word; do [ -e {folder}/"$word" ] && cat {folder}/"$word"; last=$word; done\n'
            f"[ -e {folder}/events ] || exit 0\n"
            f'case "$*" in *supervisor\\ start*) cp {folder}/events "$last/events.jsonl";; esac\n'
        )
        python.chmod(0o755)
        inventory = folder / "hosts.yml"
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": {"localhost": local}}}))
        facts = cluster(replace(VM, prefix=str(self.prefix)))
        remember(Cluster((inventory,), facts))
        plan = {"hosts": [{"name": "localhost"}], "spares": [], "rank_user": "",
                "prefix": str(self.prefix)}  # fmt: skip
        begin_record(RUN, {"inventories": [str(inventory)], "plan": plan})
        self.run_dir = self.prefix / "runs" / RUN
        self.run_dir.mkdir(parents=True)

    def answers(self, **answers: Any) -> None:
        """Return the program's output by the verb of its call."""
        for verb, answer in answers.items():
            text = answer if isinstance(answer, str) else json.dumps(answer)
            (self.folder / verb).write_text(text)

    def snapshot(self) -> dict[str, bytes]:
        """Return all files except the head's own files and Ansible's temporary files."""
        own = (self.prefix, *(self.folder / verb for verb in ("list", "remove", "start")))
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in self.folder.rglob("*")
            if not any(path.is_relative_to(one) for one in own) and ".ansible" not in path.parts
        }


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / ".ansible"))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("x")
    return Head(tmp_path)


@pytest.mark.parametrize(
    ("command", "answers"),
    [
        (["fetch"], {"list": [{**ROW, "run": "OUTSIDE", "model": "/m"}]}),
        (["clean", "--yes"], {"list": [ROW], "remove": ["OUTSIDE", RUN]}),
        (["stop", "x"], {"list": "[" * 100_000}),
    ],
)
def test_what_is_refused_changes_nothing_here(
    command: list[str], answers: dict[str, Any], head: Head, shell: Shell
) -> None:
    outside = json.dumps(str(head.folder / "outside"))
    for verb, answer in answers.items():
        text = answer if isinstance(answer, str) else json.dumps(answer)
        text = text.replace('"OUTSIDE"', outside)
        rows = verb == "list" and text != answer
        head.answers(**{verb: {"runs": pack(json.loads(text)), "left": 0} if rows else text})
    before = head.snapshot()
    said = shell(command, 1).err
    assert "Traceback" not in said
    assert "error: localhost" in said
    assert len(said.strip().splitlines()) <= 3
    assert len(said) < 6000
    assert head.snapshot() == before
    assert record_dir(RUN).exists()


def test_damaged_events_and_escapes(head: Head, shell: Shell) -> None:
    end = {"event": "end", "time": 9.0, "state": "done", "exit_code": 0, "seconds": 2.0}
    notice = {"event": "notice", "time": 1.0, "message": "\x1b[2J\u202etxt"}
    lines = [
        b"\xff" * 5000,
        b"[" * 5000,
        json.dumps(notice).encode(),
        json.dumps(end).encode(),
        b"{",
    ]
    (head.run_dir / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (head.run_dir / "ranks.log").write_bytes(b"a\x1b]0;title\x07\xff \xe2\x80\xae\n")
    assert main(["attach", RUN]) == 0
    shown = "".join(shell(["logs", RUN]))
    assert "line 1 of events.jsonl" in shown
    assert "\\x1b]0;title\\x07" in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)
    assert [one.name for one in (head.folder / "outside").iterdir()] == ["kept"]


def test_a_training_that_the_head_makes_up(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    """Invented events of any kind, in any order, change only the run's record."""
    outside = str(head.folder / "outside/kept")
    nasty = (outside, "../../outside/kept", "\x1b]0;title\x07\u202e", "a\nerror: b", "{{ 1 + 1 }}")
    events: list[Any] = [
        {name: text if value == "a" else value for name, value in event.items()}
        for text in nasty
        for event in reversed(EVENTS_SEEN.values())
        if event["event"] not in ("end", "output")
    ]
    events += [{**EVENTS_SEEN["step"], "step": 1 << 62, "loss": math.nan}, [], "[" * 5000]
    facts = {"run_hub_token": "x", "cluster_changed": {"stack": "x"}, "runs_listed": [outside]}
    events += [{**EVENTS_SEEN["notice"], "ansible_facts": facts}, {**EVENTS_SEEN["end"], **facts}]
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    (head.folder / "events").write_text("\n".join(["x" * (5 << 20), *lines, ""]))
    head.answers(**{"ftcluster_train.engine.prepare": "\x1b[2J{{ 1 + 1 }}"})
    before = head.snapshot()
    code = main(["train", "quickstart"])
    shown = "".join(capsys.readouterr())
    assert code == 0, shown  # as the last event claims
    assert "Traceback" not in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)
    assert "\nerror: b" not in shown
    assert "\n  error: b" in shown
    state = str(head.folder / "state")
    after = {path: data for path, data in head.snapshot().items() if not path.startswith(state)}
    assert after == {path: data for path, data in before.items() if not path.startswith(state)}
    assert (head.folder / "outside/kept").read_text() == "x"
