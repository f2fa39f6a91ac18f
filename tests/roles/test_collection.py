"""The collection as ansible-galaxy builds and installs it, without the rest of the repository."""

from pathlib import Path

import pytest

from tests.collection import Installed, install
from tests.programs import CONTROL

TOP = {"CHANGELOG.md", "CONTRIBUTING.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md",
       "docs", "meta", "playbooks", "plugins", "roles"}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("collection"))


def test_the_tarball_has_what_ansible_needs_and_nothing_else(installed: Installed) -> None:
    assert {name.split("/")[0] for name in installed.names} == TOP
    assert "docs/ops.md" in installed.names
    assert not [name for name in installed.names if name.endswith((".whl", ".pyc", ".tar.gz"))]


@pytest.mark.parametrize(
    ("playbook", "wheel", "said"),
    [
        ("setup", "", "this copy of the collection does not contain the package that trains on"),
        ("stack", "/no/such.whl", "/no/such.whl is not a file on the control node"),
    ],
)
def test_a_missing_wheel_is_told_before_anything_is_changed(
    installed: Installed, tmp_path: Path, playbook: str, wheel: str, said: str
) -> None:
    prefix = tmp_path / "prefix"
    options = ["-i", "localhost,", "-c", "local", "-e", f"ftcluster_prefix={prefix}",
               "-e", "ftcluster_root=false",
               "-e", f"ansible_python_interpreter={CONTROL / 'python'}"]  # fmt: skip
    if wheel:
        options += ["-e", f"node_agent_wheel={wheel}"]
    with pytest.raises(AssertionError) as failed:
        installed.run("ansible-playbook", *options, f"ftcluster.cluster.{playbook}")
    assert said in str(failed.value)
    assert "the collection from the tarball of a release" in str(failed.value)
    assert "changed=0" in str(failed.value)
    assert not prefix.exists()
