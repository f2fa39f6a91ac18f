"""The command and the webhook that are notified of a run: accepted forms, and where they are."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ftcluster.ansible.playbooks import Launched, RunEvents
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import UsageError
from ftcluster.launch.kept_options import kept_options_of
from ftcluster.launch.mpirun import render
from ftcluster.launch.notify import read_notify
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.protocol.launch import read_launch
from tests.unit.clusters import VM, cluster
from tests.unit.shell import Shell

URL = "https://chat.site/hooks/s3cret?key=a%20b"


def file_with(tmp_path: Path, text: str) -> str:
    path = tmp_path / "webhook"
    path.write_text(text)
    return str(path)


def test_a_command_is_split_as_a_shell_would_and_never_run_by_one(tmp_path: Path) -> None:
    command = "mail -s 'a run ended; rm -rf ~' me@site $HOME"
    found = read_notify(command, file_with(tmp_path, f"{URL}\n"))
    assert found.command == ("mail", "-s", "a run ended; rm -rf ~", "me@site", "$HOME")
    assert found.webhook == URL
    assert "s3cret" not in repr(found)
    assert read_notify("", "") == read_notify("", "")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mail -s 'open", "--notify: no closing quotation"),
        ("''", "--notify names no command"),
        (f"curl -d @- {URL}", "--notify contains an address"),
    ],
)
def test_commands_that_are_refused(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        LaunchOptions(notify=command)
    assert "s3cret" not in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        "", "s3cret", "ftp://site/s3cret", f"{URL}\n{URL}", "https://site/{{ s3cret }}",
        "https://site/s3\u202ecret", "https://site/s3cret x", "https://", "x" * 9000,
    ],
)  # fmt: skip
def test_files_without_an_address_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--webhook") as error:
        LaunchOptions(webhook=file_with(tmp_path, text))
    assert "s3cret" not in f"{error.value.message} {error.value.hint}"
    with pytest.raises(UsageError, match=r"no-file cannot be read: No such file"):
        LaunchOptions(webhook=str(tmp_path / "no-file"))


def test_no_record_of_a_run_has_the_address_and_the_head_gets_it(tmp_path: Path) -> None:
    recipe = parse_recipe("{task: causal-lm, data: 'a/b', model: c}", "r.yml")
    decided = plan(cluster(VM), recipe, load_stacks())
    where = Cluster((Path("/i.ini"),), cluster(VM))
    plain = TrainingRun("r-1", where, decided, render(decided, "r-1"), recipe)
    options = LaunchOptions(notify="/opt/site/tell it", webhook=file_with(tmp_path, URL))
    run = options.applied_to(plain)
    document = run.launch.to_dict()
    shown = f"{run!r} {run.record()} {run.job} {document} {run.launch.shown()} {run.kept}"
    assert "s3cret" not in shown
    (tmp_path / "launch.json").write_text(json.dumps(document))
    read = read_launch(tmp_path)
    assert (read.notify, read.webhook) == (("/opt/site/tell", "it"), True)
    events = RunEvents(run_hosts_of(where).at("r-1"), "/events")
    launched = Launched({}, {}, True, "", "", 1, [], {}, train_webhook=run.webhook)
    assert run.playbook(events, launched).variables()["train_webhook"] == URL
    # a host must not choose the command of a run that continues this one
    kept = run.kept.document()
    assert (kept["notifies"], "/opt/site/tell" in str(kept)) == (True, False)
    assert kept_options_of(kept).notifies
    before = LaunchOptions().applied_to(plain)
    assert not {"notify", "webhook"} & before.launch.to_dict().keys()
    assert asdict(before.kept)["notifies"] is False


def test_the_environment_has_their_defaults(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(Cluster((Path("/i.ini"),), cluster(VM)))
    monkeypatch.setenv("FTCLUSTER_NOTIFY", "open 'quote")
    monkeypatch.setenv("FTCLUSTER_WEBHOOK", str(tmp_path / "no-file"))
    assert "--notify: no closing" in shell("train quickstart --dry-run", 2).err
    assert "no-file cannot be read" in shell("train quickstart --dry-run --notify mail", 2).err
    webhook = file_with(tmp_path, URL)
    done = shell(["train", "quickstart", "--dry-run", "--notify", "mail", "--webhook", webhook])
    assert "s3cret" not in done.out + done.err
    monkeypatch.setenv("FTCLUSTER_WEBHOOK", webhook)
    monkeypatch.delenv("FTCLUSTER_NOTIFY")
    assert shell("train quickstart --dry-run").out
