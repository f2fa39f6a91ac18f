"""The playbooks of docs/ops.md and of the roles' pages, on bare hosts."""

import pytest

from tests import ops_page
from tests.cluster.hosts.cluster import NAMES, OTHER, THIRD
from tests.cluster.hosts.control import Control
from tests.cluster.hosts.examples import Empty, changes, empty_folder

# Those of the other roles need a stack: test_examples.py has them.
ROLES = ("account", "firewall", "os_package", "ssh_mesh", "tcmalloc", "tuning", "virtualenv")


@pytest.fixture(scope="module")
def empty(bare: Control, tmp_path_factory: pytest.TempPathFactory) -> Empty:
    return empty_folder(bare, NAMES, tmp_path_factory.mktemp("examples"))


def test_the_roles_pages(empty: Empty) -> None:
    bed, page = empty.control.bed, ops_page.read_page()
    before = {name: empty.control.snapshot(name) for name in NAMES}
    [tool] = [found.files for found in ops_page.playbooks(page) if found.files]
    for name, text in tool.items():
        empty.write(name, text)
    examples = {str(e): e for e in ops_page.read_examples() if e.role in ROLES}
    mains = [name for name, example in examples.items() if example.entry == "main"]
    for name, example in examples.items():
        empty.write(f"{name}.yml", example.playbook)
    made = [f"{name}.yml" for name in mains]
    for name in made:
        assert "0" not in changes(empty.play(name)), f"{name} changed nothing"
    assert set(changes(empty.play(*made))) == {"0"}  # one line a playbook and host
    reached = bed.ssh("node0", f"ssh -F mesh/ssh_config {OTHER} whoami")
    assert reached.stdout == "ops\n", reached.stderr
    assert bed.exec_(THIRD, "tree", "--version").returncode == 0
    removed = [f"{name}.yml" for name in reversed(examples) if name.endswith("-remove")]
    assert len(removed) == len(made) - 1  # an environment is one folder
    done = empty.play(*removed)
    assert "0" not in changes(done), done.stdout
    assert set(changes(empty.play(*removed))) == {"0"}
    for name in NAMES:
        bed.exec_(name, "rm", "-r", "/opt/markdown-it", check=True)
        assert empty.control.snapshot(name) == before[name]


def test_the_page_for_ops_teams_does_what_it_says(empty: Empty) -> None:
    bed = empty.control.bed
    for number, (title, playbook, files) in enumerate(ops_page.read_playbooks()):
        name = empty.write(f"ops-{number}.yml", playbook)
        for beside, text in files.items():
            empty.write(beside, text)
        first = empty.play(name)
        assert first.returncode == 0, f"{title}\n{first.stdout}{first.stderr}"
        assert changes(empty.play(name)) == ["0"] * len(NAMES)
    rules = bed.exec_(OTHER, "nft", "list", "ruleset", check=True).stdout
    assert "7000-7099" in rules
    tool = bed.exec_(THIRD, "/opt/markdown-it/4.3.0/bin/markdown-it", "--version", check=True)
    assert "4.3.0" in tool.stdout
