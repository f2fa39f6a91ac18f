"""What the pages show of a cluster that is set up; bare_hosts/test_pages.py has the other pages."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import ops_page
from tests.cluster.hosts.cluster import HEAD, NAMES, Cluster
from tests.cluster.hosts.examples import changes, empty_folder
from tests.programs import CONTROL

# The others would change the cluster, or have been carried out on bare hosts.
ROLES = ("node_agent", "preflight", "torch_stack", "verify")
LEFT_OUT = {("torch_stack", "remove"), ("torch_stack", "rollback")}
AT_ONCE = 3


def test_examples_find_what_setup_has_left_and_change_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    empty = empty_folder(cluster.control, NAMES, tmp_path)
    roles = "python3*/site-packages/ansible_collections/ftcluster/cluster/roles"
    [wheel] = (CONTROL.parent / "lib").glob(f"{roles}/node_agent/files/*.whl")
    examples = [
        example
        for example in ops_page.read_examples()
        if example.role in ROLES and (example.role, example.entry) not in LEFT_OUT
    ]
    names = [empty.write(f"{example}.yml", example.playbook) for example in examples]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(
            pool.map(lambda name: empty.play(name, "-e", f"node_agent_wheel={wheel}"), names)
        )
    for name, done in zip(names, runs, strict=True):
        assert (name, changes(done)) == (name, ["0"] * len(NAMES)), done.stdout


def test_going_back_as_the_page_shows_it(cluster: Cluster, tmp_path: Path) -> None:
    """The former stack is a copy here, made of links to the same files."""
    bed, prefix = cluster.control.bed, "/opt/ftcluster"
    empty = empty_folder(cluster.control, NAMES, tmp_path)
    [page] = [e for e in ops_page.read_examples() if str(e) == "torch_stack-rollback"]
    name = empty.write("rollback.yml", page.playbook)
    before = bed.exec_(HEAD, "readlink", f"{prefix}/current", check=True).stdout.strip()
    former = f"stacks/{Path(before).name[:-1]}x"
    copy = f"cd {prefix}; cp -al {before} {former}; ln -s {prefix}/{former} former"
    try:
        for host in NAMES:
            bed.exec_(host, "sh", "-c", copy, check=True)
        assert changes(empty.play(name)) == ["1"] * len(NAMES)
        now = bed.exec_(HEAD, "readlink", f"{prefix}/current", check=True).stdout.strip()
        assert Path(now).name == Path(former).name
        assert changes(empty.play(name)) == ["1"] * len(NAMES)
        now = bed.exec_(HEAD, "readlink", f"{prefix}/current", check=True).stdout.strip()
        assert now == before
    finally:
        back = f"cd {prefix}; rm -rf former {former}; ln -sfn {before} current"
        for host in NAMES:
            bed.exec_(host, "sh", "-c", back, check=True)


def test_the_way_with_ansible_galaxy(cluster: Cluster, tmp_path: Path) -> None:
    """The commands of docs/ops.md, below a folder of their own instead of /tmp."""
    empty = empty_folder(cluster.control, NAMES, tmp_path)
    collections = tmp_path / "galaxy"
    commands = ops_page.commands(ops_page.read_page(), "ansible-galaxy collection build")
    assert commands.count("\n") == 5, commands
    text = f"set -eu\n{commands}".replace("/tmp", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    env = {
        **os.environ, **empty.installed.env, **cluster.control.bed.connections,
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "PATH": f"{CONTROL}:{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "0",  # with the build backend of the lock, not the newest
    }  # fmt: skip
    (empty.installed.clone / "inventory.ini").write_text(Path(empty.inventory).read_text())
    done = subprocess.run(
        cluster.control.bed.run_argv(["sh", "-c", text]),
        env=env, cwd=empty.installed.clone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert changes(done) == ["0"] * len(NAMES), done.stdout
