"""The pages' examples for an existing cluster; bare_hosts/test_pages.py has the other pages."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ops_page
from tests.cluster.cluster import PREFIX, Cluster
from tests.cluster.control import HEAD, NAMES, OTHER
from tests.cluster.examples import ADVISED, Empty, changes, empty_folder
from tests.programs import CONTROL

pytestmark = pytest.mark.long
PAIR = (HEAD, OTHER)
# The other examples would change the cluster, or were run on bare hosts.
ROLES = ("node_agent", "preflight", "torch_stack", "verify")
ROLES_FOLDER = "python3*/site-packages/ansible_collections/ftcluster/cluster/roles"
LEFT_OUT = {("torch_stack", "remove"), ("torch_stack", "rollback")}


@pytest.fixture(scope="module")
def empty(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Empty:
    return empty_folder(cluster.control, PAIR, tmp_path_factory.mktemp("examples"))


def test_examples_find_what_setup_has_left_and_change_nothing(empty: Empty) -> None:
    [wheel] = (CONTROL.parent / "lib").glob(f"{ROLES_FOLDER}/node_agent/files/*.whl")
    examples = [
        example
        for example in ops_page.read_examples()
        if example.role in ROLES and (example.role, example.entry) not in LEFT_OUT
    ]
    names = [empty.write(f"{example}.yml", example.playbook) for example in examples]
    done = empty.play(*names, "-e", f"node_agent_wheel={wheel}", **ADVISED)
    assert done.stdout.count("PLAY RECAP") == len(names), done.stdout
    assert set(changes(done)) == {"0"}, done.stdout


def test_going_back_as_the_page_shows_it(empty: Empty) -> None:
    """Go back as on the page; here the previous stack is a copy of links to the same files."""
    control = empty.control

    def current() -> str:
        return control.shell(HEAD, f"readlink {PREFIX}/current").strip()

    [page] = [e for e in ops_page.read_examples() if str(e) == "torch_stack-rollback"]
    name = empty.write("rollback.yml", page.playbook)
    before = current()
    previous = f"stacks/{Path(before).name[:-1]}x"
    copy = f"cd {PREFIX}; cp -al {before} {previous}; ln -s {PREFIX}/{previous} previous"
    back = f"cd {PREFIX}; rm -rf previous {previous}; ln -sfn {before} current"
    with control.changed(dict.fromkeys(PAIR, (copy, back))):
        assert changes(empty.play(name)) == ["1"] * len(PAIR)
        assert Path(current()).name == Path(previous).name
        assert changes(empty.play(name, **ADVISED)) == ["1"] * len(PAIR)
        assert current() == before


def test_the_way_with_ansible_galaxy(empty: Empty, tmp_path: Path) -> None:
    """Run the commands of docs/ops.md in a folder with the tarball of a release."""
    files = empty.installed.clone / "roles/node_agent/files"
    files.mkdir()
    [wheel] = (CONTROL.parent / "lib").glob(f"{ROLES_FOLDER}/node_agent/files/*.whl")
    shutil.copy(wheel, files)
    clone, folder = str(empty.installed.clone), str(tmp_path)
    empty.installed.run("ansible-galaxy", "collection", "build", clone, "--output-path", folder)
    commands = ops_page.commands(ops_page.read_page(), "ansible-galaxy collection install")
    assert commands.count("\n") == 2, commands
    env = {
        **os.environ, **empty.installed.env, **empty.control.bed.connections,
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "galaxy"),
        "PATH": f"{CONTROL}:{os.environ['PATH']}",
    }  # fmt: skip
    inventory = Path(empty.control.inventory("galaxy.ini", NAMES))
    (tmp_path / "inventory.ini").write_text(inventory.read_text())
    done = subprocess.run(
        empty.control.bed.run_argv(["sh", "-c", f"set -eu\n{commands}"]),
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert changes(done) == ["0"] * len(NAMES), done.stdout
