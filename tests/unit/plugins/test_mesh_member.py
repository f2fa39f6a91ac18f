import os
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import RefusedPath
from ansible_collections.ftcluster.cluster.plugins.modules.mesh_member import (
    FOLDER,
    entry,
    lines_of,
    with_line,
)

KEY = "ssh-ed25519 AAAAhead ftcluster-mesh@head"
MESH = "/opt/ftcluster/mesh"
LINE = f'restrict,from="10.0.0.11" {KEY} {MESH}'
USERS = "# mine\nssh-ed25519 AAAAmine me@laptop\n"


def test_all_other_lines_stay_as_they_are() -> None:
    assert with_line(USERS, LINE, MESH) == f"{USERS}{LINE}\n"
    assert with_line(with_line(USERS, LINE, MESH), LINE, MESH) == f"{USERS}{LINE}\n"
    assert with_line(f"{USERS}{LINE}\n", "", MESH) == USERS
    assert entry(KEY, "10.0.0.11", MESH) == LINE
    # a new head replaces the former head
    previous = entry("ssh-ed25519 AAAAold ftcluster-mesh@old", "10.0.0.99", MESH)
    assert with_line(f"{previous}\n{USERS}", LINE, MESH) == f"{USERS}{LINE}\n"
    # a last line without a line end is not joined with ours
    assert with_line(USERS.rstrip("\n"), LINE, MESH) == f"{USERS}{LINE}\n"
    assert with_line("", "", MESH) == ""
    assert with_line("", LINE, MESH) == f"{LINE}\n"


def test_the_line_of_another_cluster_of_the_account_stays() -> None:
    other = entry("ssh-ed25519 AAAAother ftcluster-mesh@head", "10.0.0.11", "/srv/other/mesh")
    both = f"{other}\n{LINE}\n"
    assert with_line(f"{other}\n", LINE, MESH) == both
    assert with_line(both, "", MESH) == f"{other}\n"
    previous = f'restrict,from="10.0.0.11" {KEY}\n'  # written by a version that named no folder
    assert with_line(previous, LINE, MESH) == f"{LINE}\n"


def test_other_heads_of_the_cluster_keep_their_lines() -> None:
    other = entry("ssh-ed25519 AAAAnode2 ftcluster-mesh@node2", "10.0.0.12", MESH)
    gone = entry("ssh-ed25519 AAAAnode9 ftcluster-mesh@node9", "10.0.0.19", MESH)
    renewed = entry("ssh-ed25519 AAAAold ftcluster-mesh@head", "10.0.0.11", MESH)
    before = f"{USERS}{renewed}\n{other}\n{gone}\n"
    heads = ["10.0.0.11", "10.0.0.12", "10.0.0.13"]
    assert with_line(before, LINE, MESH, heads) == f"{USERS}{other}\n{LINE}\n"
    assert with_line(before, LINE, MESH, ["*"]) == f"{USERS}{other}\n{gone}\n{LINE}\n"
    # the same setup changes nothing, in any order of the heads
    both = f"{LINE}\n{other}\n"
    assert with_line(both, LINE, MESH, heads) == both
    for stay in (heads, ["*"]):
        assert with_line(before, "", MESH, stay) == USERS  # the cluster is removed


@pytest.mark.parametrize("what", ["pipe", "folder", "large", "no text"])
def test_what_is_no_list_of_keys_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / "authorized_keys"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff" if what == "no text" else b"")
        os.truncate(path, 1 if what == "no text" else 10 << 30)
    with pytest.raises(RefusedPath, match="authorized_keys"):
        lines_of(path)


def test_the_folder_of_the_roles_page_is_accepted() -> None:
    """The role's page has ~/mesh; a folder with a line end would add another line."""
    assert FOLDER.fullmatch("~/mesh")
    assert FOLDER.fullmatch("/opt/ftcluster/mesh")
    for wrong in ("mesh", "~/mesh\nssh-ed25519 x", "/opt/my mesh", ""):
        assert not FOLDER.fullmatch(wrong)
