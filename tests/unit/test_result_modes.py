"""Result files with rows, samples or models are unreadable for other users."""

import ast
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import pull
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import bundle as bundles
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import Wheelhouse

from ftcluster.paths import SHARED_FILE, keep_private, make_folder, write_atomically
from tests.programs import ROOT
from tests.unit.plugins.test_pull import action_of
from tests.unit.shell import Shell

UMASKS = (0o000, 0o022, 0o027, 0o077)
# the number of places that write other files: caches, locks, pipes and scratch folders
OTHER_WRITERS = {
    "runner/ftcluster/export/exporter.py": 3,  # a lock, and a scratch folder of mkdtemp
    "runner/ftcluster/export/exporters/program.py": 1,  # into that folder
    "runner/ftcluster/operations/runs/caches.py": 1,  # a lock
    "runner/ftcluster/operations/models/generate.py": 1,  # a scratch folder
}


@pytest.fixture(name="umask", params=UMASKS, ids="{:03o}".format)
def each_umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_below(folder: Path) -> set[tuple[bool, int]]:
    """Return the permissions of a folder and everything below it, and which are folders."""
    return {(path.is_dir(), mode_of(path)) for path in (folder, *folder.rglob("*"))}


PRIVATE = {(True, 0o700), (False, 0o600)}


def test_a_file_is_private_or_as_the_umask_allows(umask: int, tmp_path: Path) -> None:
    write_atomically(tmp_path / "new/deep/rows.csv", "a")
    write_atomically(tmp_path / "shared/job.sh", "a", SHARED_FILE)
    assert modes_below(tmp_path / "new") == PRIVATE
    assert mode_of(tmp_path / "shared/job.sh") == 0o644 & ~umask
    assert mode_of(tmp_path / "shared") == 0o755 & ~umask
    (tmp_path / "old.csv").touch(mode=0o666)
    # a file that others could read before becomes private
    write_atomically(tmp_path / "old.csv", "b")
    assert mode_of(tmp_path / "old.csv") == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old.csv", "shared"]


@pytest.mark.usefixtures("umask")
def test_a_folder_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o770)
    make_folder(tmp_path / "team/mine")
    assert (mode_of(tmp_path / "team"), mode_of(tmp_path / "team/mine")) == (0o770, 0o700)
    write_atomically(Path(os.devnull), "dropped")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_name_of_255_bytes_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("\u00e9" * 120 + ".html")
    write_atomically(path, "a")
    assert path.read_text() == "a"


@pytest.mark.usefixtures("umask")
def test_what_other_programs_wrote_is_made_private(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o644)
    before = mode_of(outside)
    (tmp_path / "model/sub").mkdir(parents=True)
    (tmp_path / "model/sub/a.onnx").touch(mode=0o666)
    (tmp_path / "model/link").symlink_to(outside)
    keep_private(tmp_path / "model")
    (tmp_path / "model/link").unlink()
    assert modes_below(tmp_path / "model") == PRIVATE
    assert mode_of(outside) == before


@pytest.mark.usefixtures("umask")
def test_what_is_fetched_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    source, copy = tmp_path / "source", tmp_path / "new/copy"
    (source / "sub").mkdir(parents=True)
    for name in ("model.safetensors", "sub/rows.jsonl"):
        (source / name).write_text("x")
        (source / name).chmod(0o666)
    action_of(pull, None, path=str(source), destination=str(copy)).run()
    assert modes_below(tmp_path / "new") == PRIVATE


def test_a_folder_of_others_in_the_way_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial copy's name is predictable, so another user may create it first in /tmp."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(pull.shutil, "rmtree", lambda *_, **__: None)  # as in a sticky folder
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_text("secret")
    (tmp_path / ".copy.partial").mkdir()
    action = action_of(
        pull, None, path=str(tmp_path / "source"), destination=str(tmp_path / "copy")
    )
    with pytest.raises(AnsibleActionFail, match="is in the way"):
        action.run()
    (tmp_path / ".copy.partial").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".copy.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AnsibleActionFail, match="is in the way"):
        action.run()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_bundle_is_no_wider_than_the_umask(umask: int, tmp_path: Path) -> None:
    bundle = bundles.Bundle(
        "native", "0", Target("3.11", "2.28", "x86_64"), Wheelhouse(tmp_path, {})
    )
    bundles.write_bundle(bundle, tmp_path / "my.ftbundle")
    assert mode_of(tmp_path / "my.ftbundle") == 0o644 & ~umask


def test_generated_scripts_are_no_wider_than_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    shell("export slurm quickstart -o job.sh")
    assert mode_of(tmp_path / "job.sh") == 0o644 & ~umask


def writes(tree: ast.AST) -> list[ast.Call]:
    """Yield the calls by which a module creates or replaces a file itself."""
    found = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        modes = [one.value for one in call.args if isinstance(one, ast.Constant)]
        opens = name == "open" and any(isinstance(m, str) and set(m) & set("wax") for m in modes)
        if name in ("write_text", "write_bytes", "fchmod", "mkstemp") or opens:
            found.append(call)
    return found


def test_results_are_written_by_one_function() -> None:
    """This function sets the permissions; see `ftcluster.paths.write_atomically`."""
    found = {}
    for room in ("operations", "export", "report", "benchmark", "cli"):
        for path in (ROOT / "runner/ftcluster" / room).rglob("*.py"):
            if calls := writes(ast.parse(path.read_text(encoding="utf-8"))):
                found[str(path.relative_to(ROOT))] = len(calls)
    found.pop("runner/ftcluster/cli/connection.py", None)  # mode 0600, in the state folder
    assert found == OTHER_WRITERS
    assert len(writes(ast.parse('open(p, "w"); p.write_text(t); os.fchmod(f, 0o644)'))) == 3
