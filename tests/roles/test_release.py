"""The artifacts of scripts/release, installed and used outside of the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

from hatch_version import semantic, version
from tests.programs import CONTROL, ROOT

pytestmark = pytest.mark.long
GOLDEN = ROOT / "tests/unit/planning/golden/c6i.16xlarge.json"
VERSION = version()  # the archive for the wheels has no history
WHEEL = f"ftcluster-{VERSION}-py3-none-any.whl"
NODE = f"ftcluster_train-{VERSION}-py3-none-any.whl"
COLLECTION = f"ftcluster-cluster-{semantic(VERSION)}.tar.gz"
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: ftcluster.cluster.node_agent
        tasks_from: locate
    - ansible.builtin.copy:
        content: "{{ {'problems': node_agent_problems} | to_json }}"
        dest: "{{ playbook_dir }}/problems.json"
        mode: "600"
"""


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HOME": str(cwd)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist() -> Path:
    done = subprocess.run([ROOT / "scripts/release"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_all_parts_are_there_with_their_checksums(dist: Path) -> None:
    locks = (ROOT / "roles/torch_stack/files").glob("*.txt")
    stacks = {lock.stem for lock in locks if not lock.stem.endswith("-cuda")}
    assert {path.name for path in dist.iterdir()} == {
        WHEEL, NODE, COLLECTION, f"ftcluster-{VERSION}.tar.gz", f"ftcluster-{VERSION}.cdx.json",
        "requirements.txt",
        *(f"ftcluster-stack-{stack}-{VERSION}.cdx.json" for stack in stacks), "SHA256SUMS",
    }  # fmt: skip
    assert run("sha256sum", "--check", "SHA256SUMS", cwd=dist).count(": OK") == 6 + len(stacks)


def test_the_control_wheel_carries_the_hosts_wheel_of_the_release(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        [inner] = [name for name in wheel.namelist() if name.endswith(".whl")]
        assert wheel.read(inner) == (dist / NODE).read_bytes()
        [galaxy] = [name for name in wheel.namelist() if name.endswith("/galaxy.yml")]
        assert yaml.safe_load(wheel.read(galaxy))["version"] == semantic(VERSION)


@pytest.mark.needs("index")
def test_pip_installs_the_control_node_with_hashes(dist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-I", "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv/bin"
    run(programs / "pip", "install", "-q", "--require-hashes", "-r", "requirements.txt", cwd=dist)
    shown = json.loads(run(programs / "ftcluster", "version", "--json", cwd=tmp_path))
    assert shown["ftcluster"] == VERSION
    installed = normalized(run(programs / "pip", "freeze", cwd=tmp_path))
    lock = normalized((dist / "requirements.txt").read_text())
    locked = set(re.findall(r"^([\w.-]+==[^\s\\;]+)", lock, re.MULTILINE))
    assert {line for line in installed.splitlines() if "==" in line} <= locked


def normalized(text: str) -> str:
    """Return requirements in which each name has the form that the lock uses: `a-b`, not `A_b`."""
    return re.sub(r"^[\w.-]+(?===)", lambda name: canonicalize_name(name[0]), text, flags=re.M)


def test_pip_refuses_another_wheel(dist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-I", "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    lines = (dist / "requirements.txt").read_text().splitlines()
    [line] = [text for text in lines if WHEEL in text]
    (tmp_path / "requirements.txt").write_text(line)
    for name in ("good", "bad"):
        shutil.copy(dist / WHEEL, tmp_path)
        if name == "bad":
            with zipfile.ZipFile(tmp_path / WHEEL, "a") as wheel:
                wheel.writestr("ftcluster/more.py", "")
        install = ("install", "--no-deps", "--no-index", "--dry-run", "--require-hashes", "-r")
        done = subprocess.run(
            [tmp_path / "venv/bin/pip", *install, "requirements.txt"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == (name == "good"), done.stderr
    assert "HASHES" in done.stderr


@pytest.mark.parametrize(
    ("name", "lock"),
    [
        ("ftcluster", "requirements/control.txt"),
        ("ftcluster-stack-native", "roles/torch_stack/files/native.txt"),
    ],
)
def test_components_are_those_of_the_lock(dist: Path, name: str, lock: str) -> None:
    document = json.loads((dist / f"{name}-{VERSION}.cdx.json").read_text())
    listed = {f"{part['name']}=={part['version']}" for part in document["components"]}
    locked = re.findall(r"^([\w.-]+==[^\s\\;]+)", (ROOT / lock).read_text(), re.MULTILINE)
    assert listed == set(locked)
    hashes = [part["externalReferences"][0]["hashes"] for part in document["components"]]
    assert all(hashes)


def test_the_wheel_works_in_an_empty_folder(dist: Path, tmp_path: Path) -> None:
    """With the locked packages of .venv; its own ftcluster comes after the installed package."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    wheel = dist / WHEEL
    uv = ROOT / ".venv-dev/bin/uv"
    python = tmp_path / "venv/bin/python"
    run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=tmp_path)
    (site / "locked.pth").write_text(f"{next(CONTROL.parent.glob('lib/python*/site-packages'))}\n")
    program = tmp_path / "venv/bin/ftcluster"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(program, "--version", cwd=empty) == f"ftcluster {VERSION}\n"
    assert "native" in run(program, "stacks", cwd=empty)
    (empty / "facts.json").write_text(
        json.dumps({"facts": json.loads(GOLDEN.read_text())["facts"]})
    )
    for recipe in ("quickstart", "mrpc", "squad", "clm"):
        plan = json.loads(
            run(program, "plan", recipe, "--facts", "facts.json", "--json", cwd=empty)
        )
        assert len(plan["hosts"]) == 8
    ansible = (python, CONTROL / "ansible-playbook", "--syntax-check", "-i", "localhost,")
    for playbook in ("setup", "teardown"):
        shown = run(*ansible, f"ftcluster.cluster.{playbook}", cwd=empty)
        assert f"{site}/ansible_collections/ftcluster/cluster/playbooks/{playbook}.yml" in shown


def test_the_collection_has_the_version_and_no_other_packages(dist: Path, tmp_path: Path) -> None:
    run("tar", "-xzf", dist / COLLECTION, cwd=tmp_path)
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())["collection_info"]
    assert (manifest["namespace"], manifest["version"]) == ("ftcluster", semantic(VERSION))
    ignored = yaml.safe_load((ROOT / "galaxy.yml").read_text())["build_ignore"]
    assert not {path.name for path in tmp_path.iterdir()} & {*ignored, "PKG-INFO"}


def test_the_installed_collection_finds_the_hosts_wheel(dist: Path, tmp_path: Path) -> None:
    """With an Ansible that knows no other copy of the collection."""
    programs = Path(run(ROOT / "scripts/environment", "release", cwd=ROOT).strip())
    run(programs / "ansible-galaxy", "collection", "install", dist / COLLECTION, cwd=tmp_path)
    files = "ansible_collections/ftcluster/cluster/roles/node_agent/files"
    [wheel] = (tmp_path / ".ansible/collections" / files).iterdir()
    assert wheel.read_bytes() == (dist / NODE).read_bytes()
    (tmp_path / "play.yml").write_text(PLAY)
    play = (programs / "ansible-playbook", "-c", "local", "-i", "localhost,", "play.yml")
    python = ("-e", f"ansible_python_interpreter={sys.executable}")
    run(*play, *python, cwd=tmp_path)
    assert json.loads((tmp_path / "problems.json").read_text()) == {"problems": []}
    wheel.unlink()
    run(*play, *python, cwd=tmp_path)
    [problem] = json.loads((tmp_path / "problems.json").read_text())["problems"]
    assert "tarball of a release" in problem["hint"]
