"""The playbooks of docs/ops.md on bare hosts."""

import re

from tests.cluster.hosts.cluster import NAMES, OTHER, THIRD
from tests.cluster.hosts.control import Control
from tests.ops_page import read_playbooks


def test_the_page_for_ops_teams_does_what_it_says(bare: Control) -> None:
    inventory = bare.inventory("ops.ini", NAMES)
    for number, (title, playbook, files) in enumerate(read_playbooks()):
        path = bare.folder / f"ops-{number}.yml"
        path.write_text(playbook)
        for name, text in files.items():
            (bare.folder / name).write_text(text)
        first = bare.ansible("ansible-playbook", "-i", inventory, str(path))
        assert first.returncode == 0, f"{title}\n{first.stdout}{first.stderr}"
        again = bare.ansible("ansible-playbook", "-i", inventory, str(path))
        assert re.findall(r"changed=(\d+)", again.stdout) == ["0"] * len(NAMES), again.stdout
    rules = bare.bed.exec_(OTHER, "nft", "list", "ruleset", check=True).stdout
    assert "7000-7099" in rules
    tool = bare.bed.exec_(THIRD, "/opt/markdown-it/4.3.0/bin/markdown-it", "--version", check=True)
    assert "4.3.0" in tool.stdout
