"""The space for model and data is checked on every host before anything is copied."""

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.ftcluster.cluster.plugins.action import push_space as action_module
from ansible_collections.ftcluster.cluster.plugins.modules import push_space as module

from tests.unit.hosts import plugin


@pytest.fixture
def folders(tmp_path: Path) -> list[dict[str, Any]]:
    """Return two folders to copy, of 3,000,000 and 2,000,000 bytes."""
    for name, size in (("model", 3_000_000), ("data", 2_000_000)):
        (tmp_path / name / "sub").mkdir(parents=True)
        with (tmp_path / name / "sub" / "file").open("wb") as file:
            file.truncate(size)
    (tmp_path / "prefix").mkdir()
    return [
        {"source": str(tmp_path / name), "path": f"{tmp_path}/prefix/{name}s/{name}-1"}
        for name in ("model", "data")
    ]


def checked(
    monkeypatch: pytest.MonkeyPatch, folders: list[dict[str, Any]], free: int
) -> dict[str, Any]:
    """Check the space on this machine, as if its disk had `free` bytes."""
    monkeypatch.setattr(module, "free_bytes", lambda _: free)
    action = plugin(action_module, {"folders": folders})

    def on_this_host(name: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert name == "ftcluster.cluster.push_space"
        return {"places": module.places_of([folder["path"] for folder in arguments["folders"]])}

    monkeypatch.setattr(action, "_execute_module", on_this_host)
    monkeypatch.setattr(action_module.ActionBase, "run", lambda *_: {})
    found: dict[str, Any] = action.run(task_vars={})
    return found


def test_folders_must_fit_together(
    monkeypatch: pytest.MonkeyPatch, folders: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert checked(monkeypatch, folders, 5_000_000)["needed_bytes"] == 5_000_000
    with pytest.raises(AnsibleActionFail) as raised:
        checked(monkeypatch, folders, 4_999_999)
    assert str(raised.value) == (
        f"the files to copy need 5,000,000 bytes in {tmp_path}/prefix, but only 4,999,999 bytes "
        "are free; free some space there, or set the cluster up in another folder: ftcluster setup "
        "-e ftcluster_prefix=DIR"
    )


PLACE = {"path": "/p/data/d-1", "folder": "/p", "device": 7, "free_bytes": 1}


@pytest.mark.parametrize(
    "places",
    [
        None, {}, [None], [{}], [{**PLACE, "path": "/etc"}], [{**PLACE, "free_bytes": "1"}],
        [{**PLACE, "device": [7]}], [{**PLACE, "more": 1}],
    ],
)  # fmt: skip
def test_a_lying_host_is_refused(monkeypatch: pytest.MonkeyPatch, places: Any) -> None:
    action = plugin(action_module, {"folders": [{"source": "/d", "path": PLACE["path"]}]})
    monkeypatch.setattr(action, "_execute_module", lambda *_, **__: {"places": places})
    monkeypatch.setattr(action_module.ActionBase, "run", lambda *_: {})
    with pytest.raises(AnsibleActionFail, match="response about its free space is invalid"):
        action.run(task_vars={})
    assert action_module.checked_places([PLACE], {PLACE["path"]}) == [PLACE]


def test_folders_that_the_host_has_need_no_space(
    monkeypatch: pytest.MonkeyPatch, folders: list[dict[str, Any]]
) -> None:
    Path(folders[0]["path"]).mkdir(parents=True)
    assert checked(monkeypatch, folders, 2_000_000)["needed_bytes"] == 2_000_000
    Path(folders[1]["path"]).mkdir(parents=True)
    assert checked(monkeypatch, folders, 0)["needed_bytes"] == 0


def test_only_the_named_files_count(
    monkeypatch: pytest.MonkeyPatch, folders: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "model" / "script.py").write_bytes(b"pass\n")
    script = {**folders[0], "files": ["script.py"]}
    assert checked(monkeypatch, [script], 5)["needed_bytes"] == 5


def test_each_file_system_is_counted_alone() -> None:
    places = [
        {"path": "/a/m", "folder": "/a", "device": 1, "free_bytes": 10},
        {"path": "/b/d", "folder": "/b", "device": 2, "free_bytes": 10},
        {"path": "/b/e", "folder": "/b", "device": 2, "free_bytes": 10},
    ]
    assert action_module.shortages(places, {"/a/m": 10, "/b/d": 5, "/b/e": 5}) == []
    [problem] = action_module.shortages(places, {"/a/m": 10, "/b/d": 5, "/b/e": 6})
    assert problem == "the files to copy need 11 bytes in /b, but only 10 bytes are free"


def test_the_free_space_is_that_of_the_disk(tmp_path: Path) -> None:
    [place] = module.places_of([str(tmp_path), f"{tmp_path}/new/folder"])
    state = os.statvfs(tmp_path)
    assert place["device"] == tmp_path.stat().st_dev
    assert abs(place["free_bytes"] - state.f_bavail * state.f_frsize) < 1 << 30


def test_a_source_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, folders: list[dict[str, Any]], tmp_path: Path
) -> None:
    missing = {**folders[0], "source": str(tmp_path / "nothing")}
    with pytest.raises(AnsibleActionFail, match="/nothing cannot be read: No such file"):
        checked(monkeypatch, [missing], 10)
