import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.cli.ansible_options import passed_on
from ftcluster.cli.commands import build_parser
from ftcluster.cli.main import main
from ftcluster.cli.setup import FLAGS
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import FtclusterError
from ftcluster.launch.follow import new_run_id
from ftcluster.operations.train.prepare import RecipeRequest
from tests.programs import ROOT
from tests.unit.clusters import VM, cluster, host
from tests.unit.shell import Shell


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def remembered() -> None:
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(VM)))


def test_python_runs_the_package_as_the_command() -> None:
    command = [sys.executable, "-P", "-m", "ftcluster", "stop"]
    sources = {"PYTHONPATH": f"{ROOT / 'runner'}:{ROOT / 'common'}"}
    stopped = subprocess.run(
        command, env={**os.environ, **sources}, capture_output=True, text=True, check=False
    )
    assert (stopped.returncode, stopped.stderr.splitlines()[0]) == (
        2,
        "error: stop needs the id of a run, or the beginning of an id",
    )


def test_options_of_ansible_go_through_unchanged() -> None:
    options = build_parser().parse_args(
        ["setup", "i.ini", "--check", "--diff", "-l", "a,b", "--tags", "stack", "-e", "x=1",
         "-e", "@f.yml"]
    )  # fmt: skip
    assert passed_on(vars(options), FLAGS) == (
        "--limit", "a,b", "--tags", "stack", "--extra-vars", "x=1", "--extra-vars", "@f.yml",
        "--check", "--diff",
    )  # fmt: skip
    assert "--check" not in passed_on(vars(options))


def test_wrong_usage_is_2() -> None:
    ranks = ("train --ranks-per-host 0", "train --ranks-per-host x")
    for words in ("setup --wrong", "run --wrong -- train.py", *ranks):
        assert main(words.split()) == 2, words


# commands that accept several words: runs, hosts, the words of a script
HOSTS = ("hosts add", "hosts remove", "hosts drain", "hosts return")
TAKE_MANY = {"stop", "report", "clean", "run", "generate", *HOSTS}


def kinds_of_commands() -> Iterator[str]:
    """Return each command, or its subcommands, such as `bench scaling`."""
    for name, parser in build_parser().commands.parsers.items():
        groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        kinds = [kind for group in groups for kind in group.choices]
        yield from (f"{name} {kind}" for kind in kinds)
        if not kinds:
            yield name


@pytest.mark.parametrize("command", sorted({*kinds_of_commands()} - TAKE_MANY))
def test_words_that_mean_nothing_are_never_ignored(command: str, shell: Shell) -> None:
    remembered()
    assert "error: " in shell([*command.split(), "mrpc", "quickstart", "third"], 2).err


def test_arguments_may_come_after_options(shell: Shell) -> None:
    remembered()
    out = shell("train --ranks-per-host 1 mrpc --dry-run precision=fp32").out
    assert "\nprecision: fp32 (set in recipe mrpc)" in out
    assert "\nranks on localhost: 1 (set with --ranks-per-host)" in out


def test_two_control_nodes_do_not_give_two_runs_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Noon":
            return cls(2026, 1, 31, 12, tzinfo=tz)

    monkeypatch.setattr("ftcluster.launch.follow.datetime", Noon)
    ids = set()
    for control in ("one", "other", "third"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / control))
        ids.add(new_run_id("quickstart"))
    assert len(ids) > 1
    for run in ids:
        assert re.fullmatch(r"quickstart-20260131-120000-[0-9a-f]{4}", run)


def test_a_launch_asks_before_it_copies() -> None:
    for name in ("train", "run"):
        [prepare, _] = yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())
        first = [next(iter(task.values() if "name" not in task else list(task.values())[1:]))
                 for task in prepare["tasks"][:3]]  # fmt: skip
        names = ["firewall-state", "same-cluster", "new-run"]
        assert first == [f"tasks/{one}.yml" for one in names]


def test_bad_data_and_bad_model_are_reported_together(tmp_path: Path, shell: Shell) -> None:
    remembered()
    (tmp_path / "data").mkdir()
    (tmp_path / "model").mkdir()
    err = shell("train mrpc --data data --model ./model", 1).err
    assert "data; supported formats: .csv" in err
    assert "no config.json" in err
    # a name that begins with ./ or ends with / can only be a folder
    assert "none" in shell("train mrpc --data ./none", 1).err


def test_data_of_another_name_drops_the_recipes_configuration() -> None:
    remembered()
    assert RecipeRequest(("mrpc",)).prepared(recall()).recipe.data_config == "mrpc"
    assert RecipeRequest(("mrpc",), data="mine/own").prepared(recall()).recipe.data_config is None
    qqp = RecipeRequest(("mrpc", "data_config=qqp"), data="nyu-mll/glue").prepared(recall()).recipe
    assert (qqp.data, qqp.data_config) == ("nyu-mll/glue", "qqp")


def test_folders_are_copied_to_hosts_under_a_name_that_changes_with_them(tmp_path: Path) -> None:
    remember(
        Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(host("node0"), host("node1")))
    )
    data = tmp_path / "pairs"
    data.mkdir()
    for split in ("train", "validation"):
        row = {"sentence1": "a", "sentence2": "b", "label": 0}
        (data / f"{split}.jsonl").write_text(json.dumps(row))
    run = RecipeRequest(("mrpc",), data=str(data)).prepared(recall())
    [(source, path)] = run.folders
    assert source == str(data)
    assert path.startswith("/opt/ftcluster/data/pairs-")
    assert run.recipe.data == path
    (data / "train.jsonl").write_text(json.dumps({**row, "label": 1}))
    assert RecipeRequest(("mrpc",), data=str(data)).prepared(recall()).recipe.data != path


def test_folders_are_read_where_they_are_on_this_machine(tmp_path: Path) -> None:
    remembered()
    row = {"sentence1": "a", "sentence2": "b", "label": 0}
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    run = RecipeRequest(("mrpc",), data=str(tmp_path)).prepared(recall())
    assert (run.recipe.data, run.folders) == (str(tmp_path), ())


def test_importing_the_command_line_needs_no_torch() -> None:
    code = (
        "import sys, ftcluster.cli.main; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_teardown_without_an_inventory_names_the_last_one(shell: Shell) -> None:
    assert "ftcluster teardown INVENTORY" in shell("teardown", 2).err
    paths = (Path("/a b.ini"), Path("/c.yml"))
    remember(Cluster(inventories=paths, facts=cluster(VM)))
    assert "ftcluster teardown -i '/a b.ini' -i /c.yml\n" in shell("teardown", 2).err


def test_teardown_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, ...]] = []

    def run_stages(_playbook: str, paths: tuple[Path, ...], *_: object) -> None:
        asked.append(paths)
        raise FtclusterError("no host answers")

    monkeypatch.setattr("ftcluster.operations.setup.setup.run_stages", run_stages)
    assert main(["teardown", "localhost"]) == 1
    [[path]] = asked
    assert path.is_file()
