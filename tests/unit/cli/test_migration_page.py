"""The trainings in docs/migrate.md can be planned for hosts like those of the guides."""

import json
from pathlib import Path

import pytest

from tests.programs import ROOT
from tests.unit.commands import Command, commands
from tests.unit.shell import Shell

TRAININGS = [
    command
    for command in commands(ROOT / "docs/migrate.md", ROOT)
    if command.words[1] == "train" and not command.inline
]
GOLDEN = ROOT / "tests/unit/planning/golden"


@pytest.mark.parametrize("command", TRAININGS, ids=lambda command: command.text)
def test_each_training_can_be_planned(command: Command, tmp_path: Path, shell: Shell) -> None:
    machine = "c6i.16xlarge" if "mrpc" in command.words else "r7iz.metal-16xl"
    facts = tmp_path / "facts.json"
    golden = json.loads((GOLDEN / f"{machine}.json").read_text())
    facts.write_text(json.dumps({"facts": golden["facts"]}))
    plan = shell(["plan", *command.words[2:], "--facts", str(facts), "--json"]).document
    nodes = int(command.words[command.words.index("--nodes") + 1])
    threads = 32 if nodes == 1 else 31  # one core is reserved for communication
    found = [[rank["threads"] for rank in host["ranks"]] for host in plan["hosts"]]
    assert found == [[threads]] * nodes
