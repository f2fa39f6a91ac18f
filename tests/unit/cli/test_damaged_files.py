"""Damaged files in the state folder: they are reported and kept, and commands do not fail."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import follow
from ftcluster.launch.record import begin_record, record_dir
from ftcluster.launch.run import Followed
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.operations import connection
from ftcluster.operations.runs import runs
from ftcluster.operations.setup import check
from ftcluster.paths import state_dir
from ftcluster.progress.state import RunProgress
from ftcluster_common.protocol.run_state import RunState
from tests.unit.clusters import VM, cluster

RUN = "mrpc-20260131-101500-7f3a"
LISTED = RunState(RUN, "done", "mrpc", ("localhost",), 1, 20, 20, 100.0, 5.0, "/m")
RUN_HOSTS = RunHosts((Path("hosts.ini"),), ("localhost",), "", "/opt/ftcluster")
CHECK = {"inventory": "hosts.ini", "warnings": [], "pairs": [], "hosts": []}
FIGURES = ("cpu", "threads", "torch", "mhz", "memory_bytes")
OF_HOST = {**dict.fromkeys(FIGURES, 1), "date": "2026-01-31"}
LESS = b'{"a": [1]}'


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a cluster with a run; nothing connects to its hosts."""
    monkeypatch.chdir(tmp_path)
    remember(Cluster(RUN_HOSTS.inventories, cluster(VM)))
    plan = {
        "hosts": [{"name": "localhost"}],
        "spares": [],
        "rank_user": "",
        "prefix": RUN_HOSTS.prefix,
    }
    facts = [asdict(VM)]
    begin_record(RUN, {"kind": "train", "inventories": ["i"], "plan": plan, "facts": facts})
    history = {"format": 1, "inventories": {"hosts.ini": {"a": [OF_HOST] * 3}}}
    (state_dir() / "checks.json").write_text(json.dumps(history))
    ended = RunProgress(RUN, "done", end={"event": "end", "state": "done"})
    monkeypatch.setattr(connection, "list_everywhere", lambda *_: ([LISTED], 0, ()))
    monkeypatch.setattr(runs, "find_run", lambda *_: LISTED)
    monkeypatch.setattr(follow, "stop", lambda *_, **__: None)
    monkeypatch.setattr(follow, "attach", lambda *_: Followed(ended, PlaybookOutcome("done", "")))
    monkeypatch.setattr(check, "collect", lambda *_: None)
    monkeypatch.setattr(check.check_report, "document", lambda _: {**CHECK, "state": "fit"})
    monkeypatch.setattr(check.check_text, "lines", lambda _: [])


FILES: dict[str, Callable[[], Path]] = {
    "run.json": lambda: record_dir(RUN) / "run.json",
    "checks.json": lambda: state_dir() / "checks.json",
}
COMMANDS = (
    "ps", "ps --json", f"attach {RUN}", "attach", f"stop {RUN}", "clean --dry-run", "check",
    "plan quickstart", "train quickstart --dry-run --json", "hosts",
)  # fmt: skip

READERS = {"run.json": ("ps", f"attach {RUN}", "plan quickstart"), "checks.json": ("check",)}


def broken(text: str) -> list[bytes]:
    """Yield damaged variants of a file: truncated, overwritten, or with another form."""
    document = json.loads(text)
    other = [{**document, key: None} for key in document if key != "format"]
    forms = (json.dumps(one).encode() for one in [5, None, [], "a", [5], *other])
    deep = b"[" * 100_000
    cut = [text[:1].encode(), text[: len(text) // 2].encode(), text[:-3].encode(), b""]
    return [*cut, b"\xff\xfe", b"\0" * 50, deep, LESS, *forms]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("name", FILES)
def test_every_command_goes_on_and_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES[name]()
    whole = file.read_text()
    for command in COMMANDS:
        assert main(command.split()) == 0, command
    file.write_text(whole)
    assert "damaged" not in capsys.readouterr().err
    for number, content in enumerate(broken(whole)):
        told = 0
        for command in READERS[name] if number else COMMANDS:
            file.write_bytes(content)
            assert main(command.split()) == 0, (content[:50], command)
            if "damaged" in capsys.readouterr().err:
                told += 1
                [aside] = file.parent.glob(f"{name}.damaged*")
                assert aside.read_bytes() == content
                aside.unlink()
        # a record of a version that wrote fewer fields is not damaged
        assert told or (name, content) == ("run.json", LESS), content[:50]


@pytest.mark.usefixtures("state")
def test_what_is_kept_aside_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES["checks.json"]()
    for content in ("{", "["):
        file.write_text(content)
        assert main(["check"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert [line.rpartition(" ")[2] for line in said] == [
        "checks.json.damaged",
        "checks.json.damaged1",
    ]
    assert file.with_name("checks.json.damaged").read_text() == "{"
    assert file.with_name("checks.json.damaged1").read_text() == "["
