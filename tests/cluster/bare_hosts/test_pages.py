"""The playbooks of docs/single-roles.md and of the roles' pages, on bare hosts."""

from collections.abc import Iterator

import pytest

from tests import ops_page
from tests.cluster.control import HEAD, OTHER, Control
from tests.cluster.examples import ADVISED, NOT_DRY, Empty, changes, empty_folder
from tests.programs import CONTROL

pytestmark = pytest.mark.long
# The examples of the other roles need a stack: test_examples.py runs them.
HOSTS = (HEAD, OTHER)
COLLECTION = "python3*/site-packages/ansible_collections/ftcluster/cluster"
ROLES = ("account", "firewall", "os_package", "ssh_mesh", "tcmalloc", "tuning", "virtualenv")


@pytest.fixture(scope="module")
def empty(bare: Control, tmp_path_factory: pytest.TempPathFactory) -> Empty:
    return empty_folder(bare, HOSTS, tmp_path_factory.mktemp("examples"))


@pytest.fixture
def undone(empty: Empty) -> Iterator[None]:
    """Undo the playbooks of docs/single-roles.md at the end, as its last section says."""
    before = empty.control.snapshots()
    yield
    playbooks = [*reversed(ops_page.playbooks(ops_page.read_single_roles()))]
    names = [
        empty.write(f"undo-{number}.yml", ops_page.undoing(playbook.text))
        for number, playbook in enumerate(playbooks)
    ]
    done = empty.play(*names, **ADVISED)
    for name in HOSTS:
        empty.control.shell(name, "rm -rf /opt/markdown-it")
    empty.control.purge_packages()
    assert done.returncode == 0, done.stdout + done.stderr
    assert empty.control.snapshots() == before


def test_the_roles_pages(empty: Empty) -> None:
    """Run the roles with Ansible's settings; remove them with the settings of docs/ops.md.

    Tests of setup and teardown check that a second run of the roles changes nothing.
    """
    control, page = empty.control, ops_page.read_single_roles()
    before = control.snapshots()
    [tool] = [found.files for found in ops_page.playbooks(page) if found.files]
    for name, text in tool.items():
        empty.write(name, text)
    examples = [example for example in ops_page.read_examples() if example.role in ROLES]
    for example in examples:
        empty.write(f"{example}.yml", example.playbook)
    made = [f"{example}.yml" for example in examples if example.entry == "main"]
    done = changes(empty.make(*made))  # one line per playbook and host
    assert len(done) == len(made) * len(HOSTS)
    assert "0" not in done
    reached = control.bed.ssh(HEAD, f"ssh -F mesh/ssh_config {OTHER} whoami")
    assert reached.stdout == "ops\n", reached.stderr
    control.shell(OTHER, "tree --version")
    removed = [f"{example}.yml" for example in reversed(examples) if example.entry == "remove"]
    # an environment is one folder, and packages stay installed
    assert len(removed) == len(made) - 3
    assert "0" not in changes(empty.play(*removed, **ADVISED))
    for name in HOSTS:
        control.shell(name, "rm -r /opt/markdown-it")
    control.purge_packages()
    assert control.snapshots() == before


def test_all_roles_work_in_check_mode_on_bare_hosts(empty: Empty) -> None:
    """Run all roles in check mode, even roles that no other test here runs."""
    control, before = empty.control, empty.control.snapshots()
    [tool] = [
        found.files for found in ops_page.playbooks(ops_page.read_single_roles()) if found.files
    ]
    for name, text in tool.items():
        empty.write(name, text)
    [wheel] = (CONTROL.parent / "lib").glob(f"{COLLECTION}/roles/node_agent/files/*.whl")
    names = [empty.write(f"{each}.yml", each.playbook) for each in ops_page.read_examples()]
    assert NOT_DRY.keys() <= set(names)
    dry = [name for name in names if name not in NOT_DRY]
    done = empty.play(*dry, "--check", "-e", f"node_agent_wheel={wheel}", **ADVISED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fatal:" not in done.stdout, done.stdout
    assert control.snapshots() == before


@pytest.mark.usefixtures("undone")
def test_the_page_for_ops_teams_does_what_it_says(empty: Empty) -> None:
    control = empty.control
    for number, playbook in enumerate(ops_page.playbooks(ops_page.read_single_roles())):
        name = empty.write(f"ops-{number}.yml", playbook.text)
        for beside, text in playbook.files.items():
            empty.write(beside, text)
        assert changes(empty.make(name)), playbook.title
        assert changes(empty.play(name, **ADVISED)) == ["0"] * len(HOSTS)
    assert "7000-7099" in control.shell(OTHER, "nft list ruleset")
    assert "4.3.0" in control.shell(OTHER, "/opt/markdown-it/4.3.0/bin/markdown-it --version")
