"""`ftcluster sweep` with real trainings on this machine."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.programs import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.long
WORDS = ("sweep", "quickstart", *FEW_PAIRS, "learning_rate=1e-5,1e-3", "--name", "tried", "--json")


def test_a_sweep_goes_on_where_it_was_left(machine: Machine, tmp_path: Path) -> None:
    def there() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(machine.home.run("ps", "--json").stdout)
        return [one for one in listed if one["run"].startswith("tried-")]

    sweeping = machine.home.start(*WORDS)
    wait_for(lambda: [one for one in there() if one["step"]], PATIENCE_SECONDS)
    sweeping.send_signal(signal.SIGINT)
    left, _ = sweeping.communicate(timeout=120)
    assert sweeping.returncode == 130
    assert json.loads(left)["state"] == "stopped"
    page, model = tmp_path / "page.html", tmp_path / "model"
    done = machine.home.run(*WORDS, "--report", str(page), "--fetch", str(model))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    runs = {one["run"]: one["settings"]["learning_rate"] for one in found["runs"]}
    assert {one["run"]: one["tags"].partition("=")[2] for one in there()} == runs
    losses = {one["run"]: one["metrics"]["loss"] for one in found["runs"]}
    assert found["best"] == min(losses, key=lambda run: losses[run])
    assert (model / "config.json").is_file()
    assert "<svg" in page.read_text()
    # nothing is trained again
    assert json.loads(machine.home.run(*WORDS).stdout)["best"] == found["best"]
    assert len(there()) == 2
