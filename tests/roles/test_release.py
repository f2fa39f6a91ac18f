"""The artifacts of scripts/release, installed and used outside of the repository."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from ftcluster_common import RELEASE
from hatch_version import version
from tests.programs import CONTROL, ROOT

pytestmark = pytest.mark.long
GOLDEN = ROOT / "tests/unit/planning/golden/c6i.16xlarge.json"
VERSION = version()  # the archive that the wheels are built from has no history
NODE = f"ftcluster_train-{VERSION}-py3-none-any.whl"


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
        f"ftcluster-{VERSION}-py3-none-any.whl", NODE, f"ftcluster-{VERSION}.tar.gz",
        f"ftcluster-cluster-{RELEASE}.tar.gz", f"ftcluster-{VERSION}.cdx.json",
        *(f"ftcluster-stack-{stack}-{VERSION}.cdx.json" for stack in stacks), "SHA256SUMS",
    }  # fmt: skip
    assert run("sha256sum", "--check", "SHA256SUMS", cwd=dist).count(": OK") == 5 + len(stacks)


def test_the_control_wheel_carries_the_hosts_wheel_of_the_release(dist: Path) -> None:
    with zipfile.ZipFile(dist / f"ftcluster-{VERSION}-py3-none-any.whl") as wheel:
        [inner] = [name for name in wheel.namelist() if name.endswith(".whl")]
        assert wheel.read(inner) == (dist / NODE).read_bytes()


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
    """With the locked packages that .venv has; its own ftcluster comes after the installed one."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    wheel = dist / f"ftcluster-{VERSION}-py3-none-any.whl"
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
    archive = dist / f"ftcluster-cluster-{RELEASE}.tar.gz"
    run("tar", "-xzf", archive, cwd=tmp_path)
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())["collection_info"]
    assert (manifest["namespace"], manifest["version"]) == ("ftcluster", RELEASE)
    ignored = yaml.safe_load((ROOT / "galaxy.yml").read_text())["build_ignore"]
    assert not {path.name for path in tmp_path.iterdir()} & set(ignored)
