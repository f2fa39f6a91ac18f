"""Ansible treats a user's texts as data, from the command line to the ranks and back."""

import json
from pathlib import Path

from tests.cluster.conftest import Machine

TEMPLATE = '{{ lookup("pipe", "touch $PLANTED") }}'


def test_nothing_that_a_user_writes_is_executed_on_the_control_node(
    machine: Machine, tmp_path: Path
) -> None:
    trap = tmp_path / "planted"
    home = machine.home
    refused = home.run("train", "quickstart", f"model={TEMPLATE}", PLANTED=str(trap))
    assert refused.returncode == 1
    assert f"model '{TEMPLATE}' is neither a local folder nor" in refused.stderr
    script = tmp_path / TEMPLATE / f"{TEMPLATE}.py"
    script.parent.mkdir()
    script.write_text("import json, sys\nprint(json.dumps(sys.argv))\n")
    words = [TEMPLATE, "{% raw %}", "a\nb", "$(touch $PLANTED)", "\x1b[1m"]
    ran = home.run("run", "--ranks-per-host", "1", "--", str(script), *words, PLANTED=str(trap))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)[1:] == words
    assert not trap.exists()
