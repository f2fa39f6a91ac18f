"""Runs the pages' playbooks as a user who has only the collection does, in an empty folder."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.control import SECONDS, Completed, Control
from tests.collection import Installed, install
from tests.programs import CACHE, CONTROL

# the setting of docs/ops.md that saves most time
ADVISED = {"ANSIBLE_PIPELINING": "true"}
# examples that cannot run in check mode on a host without a stack
NOT_DRY = {
    "verify-main.yml": "starts the stack's programs on the hosts",
    "verify-collect.yml": "starts the stack's programs on the hosts",
    "torch_stack-rollback.yml": "there is no previous stack",
}


@dataclass(frozen=True)
class Empty:
    """An empty folder on the control node of some hosts, whose Ansible has the collection."""

    control: Control
    installed: Installed
    folder: Path
    inventory: str

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def make(self, *playbooks: str, **environment: str) -> Completed:
        """Run playbooks first in check mode, which must change nothing, and then really.

        All tests of roles on hosts without these roles use this method.
        """
        before = self.control.snapshots()
        dry = self.play(*(name for name in playbooks if name not in NOT_DRY), "--check", **ADVISED)
        assert dry.returncode == 0, dry.stdout + dry.stderr
        assert "fatal:" not in dry.stdout, dry.stdout
        assert self.control.snapshots() == before
        return self.play(*playbooks, **environment)

    def play(self, *playbooks: str, **environment: str) -> Completed:
        program = CONTROL / "ansible-playbook"
        env = self.installed.env | {"XDG_CACHE_HOME": str(CACHE)} | self.control.bed.connections
        return self.control.bed.run(
            program, "-i", self.inventory, *playbooks,
            env=env | environment, cwd=self.folder, timeout=SECONDS,
        )  # fmt: skip


def empty_folder(control: Control, hosts: tuple[str, ...], parent: Path) -> Empty:
    folder = parent / "empty"
    folder.mkdir()
    inventory = control.inventory("examples.ini", hosts)
    return Empty(control, install(parent), folder, inventory)


def changes(done: Completed) -> Sequence[str]:
    """Return the number of changes on each host, or its error."""
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"changed=(\d+)", done.stdout)
