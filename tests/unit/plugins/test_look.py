"""Tasks that ask their host in one shell command before they run a module; this machine answers."""

import getpass
import os
import shlex
import stat
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.action import (
    environment,
    files,
    mesh_head,
    mesh_member,
    setup_lock,
    stack_link,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.modules import environment as environment_module
from ansible_collections.ftcluster.cluster.plugins.modules import files as files_module
from ansible_collections.ftcluster.cluster.plugins.modules import mesh_head as mesh_head_module
from ansible_collections.ftcluster.cluster.plugins.modules import mesh_member as mesh_member_module
from ansible_collections.ftcluster.cluster.plugins.modules import setup_lock as setup_lock_module
from ansible_collections.ftcluster.cluster.plugins.modules import stack_link as stack_link_module
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import look

from tests.unit.hosts import Action, plugin

USER = getpass.getuser()
MODULE = {"the module": "was run"}
Act = Callable[..., dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that only this user may change."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Act:
    """Runs an action plugin on this machine; where it leaves the task to the module, says so."""

    def run(module: Any, check: bool = False, **arguments: Any) -> dict[str, Any]:
        action = plugin(module, arguments, check)
        monkeypatch.setattr(
            action, "_low_level_execute_command", Action()._low_level_execute_command
        )
        monkeypatch.setattr(action, "_execute_module", lambda *_, **__: MODULE)
        result: dict[str, Any] = action.run(None, {})
        return result

    return run


def test_what_is_there_is_told_with_all_above_it(place: Path) -> None:
    (place / "file").write_text("text")
    (place / "file").chmod(0o640)
    (place / "link").symlink_to("file")
    found = look(
        Action(), [str(place / name) for name in ("file", "link", "none")], [str(place / "file")],
        'tell more "of it"',
    )  # fmt: skip
    assert found is not None
    assert found.user == USER
    file, link = (found.places[str(place / name)] for name in ("file", "link"))
    assert (file.kind, file.owner, file.mode, file.links) == ("regular file", USER, 0o640, 1)
    assert link.kind == "symbolic link"
    assert str(place / "none") not in found.places
    assert {"/", "/tmp"} <= found.places.keys()
    assert found.sha256.keys() == {str(place / "file")}
    assert found.said["more"] == ["of it"]


@pytest.mark.parametrize("path", ["relative", "/with a space", "/it's", "/$HOME", "/a\nb", "/*"])
def test_odd_paths_are_not_asked_for(path: str) -> None:
    action = Action()
    assert look(action, [path]) is None
    assert action.sent == []


def test_a_folder_that_others_may_change_guards_nothing(place: Path) -> None:
    def guarded(path: Path) -> bool:
        found = look(Action(), [str(path)])
        assert found is not None
        return found.is_guarded(str(path))

    (place / "folder").mkdir()
    (place / "link").symlink_to("folder")
    assert guarded(place / "folder" / "file")
    assert not guarded(place / "link" / "file")
    assert not guarded(place / "none" / "file")
    (place / "folder").chmod(0o775)
    assert not guarded(place / "folder" / "file")
    (place / "folder").chmod(0o1777)
    assert guarded(place / "folder" / "file")
    if os.geteuid() == 0:
        (place / "folder").chmod(0o755)
        os.chown(place / "folder", 65534, 65534)
        assert not guarded(place / "folder" / "file")


# --- files


def entries(place: Path) -> list[dict[str, Any]]:
    return [
        {"path": str(place / "sub"), "state": "directory", "mode": "0750"},
        {"path": str(place / "sub/file"), "content": "text\n", "mode": "0600", "owner": USER},
        {"path": str(place / "sub/kept"), "mode": "0644"},
        {"path": str(place / "gone"), "state": "absent"},
    ]


@pytest.fixture
def settled(place: Path, run_module: Any) -> list[dict[str, Any]]:
    """Entries that the module has brought about."""
    wanted = [entry for entry in entries(place) if USER == "root" or entry.get("state") != "absent"]
    assert run_module(files_module.main, files=wanted)["changed"]
    (place / "sub/kept").touch(0o644)
    return wanted


def test_files_that_are_as_they_shall_be(act: Act, settled: list[dict[str, Any]]) -> None:
    assert act(files, files=settled) == {"changed": False, "changed_paths": []}
    assert act(files, check=True, files=settled)["changed"] is False


CHANGES: dict[str, Callable[[Path], object]] = {
    "text": lambda place: (place / "sub/file").write_text("Text\n"),
    "mode": lambda place: (place / "sub/file").chmod(0o644),
    "folder's mode": lambda place: (place / "sub").chmod(0o755),
    "removed": lambda place: (place / "sub/file").unlink(),
    "a link to the same": lambda place: (
        (place / "sub/file").rename(place / "same"),
        (place / "sub/file").symlink_to(place / "same"),
    ),
    "another name of it": lambda place: (place / "other").hardlink_to(place / "sub/file"),
    "a folder in its place": lambda place: (
        (place / "sub/file").unlink(),
        (place / "sub/file").mkdir(0o600),
    ),
    "a folder that others may change": lambda place: place.chmod(0o777),
    "a linked folder": lambda place: (
        (place / "sub").rename(place / "moved"),
        (place / "sub").symlink_to("moved"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_module_judges_all_else(
    act: Act, settled: list[dict[str, Any]], place: Path, change: str
) -> None:
    CHANGES[change](place)
    assert act(files, files=settled) == MODULE


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "nobody"},
        {"group": "nogroup"},
        {"mode": "rw"},
        {"path": 5},
        {"state": "directory"},
    ],
)
def test_what_differs_in_the_arguments_is_for_the_module(
    act: Act, settled: list[dict[str, Any]], change: dict[str, Any]
) -> None:
    settled[1] |= change
    assert act(files, files=settled) == MODULE
    assert act(files, files="no list") == MODULE


@pytest.mark.needs("root")  # others do not see all that is there
def test_what_shall_be_gone_and_is_there_is_for_the_module(
    act: Act, settled: list[dict[str, Any]], place: Path
) -> None:
    (place / "gone").symlink_to("nowhere")
    assert act(files, files=settled) == MODULE


# --- links, environments, the mesh, the lock


def test_the_stack_in_use(act: Act, place: Path, run_module: Any) -> None:
    stack = place / "stacks" / "one"
    stack.mkdir(parents=True)
    (stack / ".complete").touch()
    arguments = {"prefix": str(place), "path": str(stack)}
    assert act(stack_link, **arguments) == MODULE
    assert run_module(stack_link_module.main, **arguments)["changed"]
    assert act(stack_link, **arguments) == {"changed": False, "current": str(stack)}
    assert act(stack_link, prefix=str(place), path=f"{stack}2") == MODULE
    assert act(stack_link, **arguments, state="former") == MODULE
    assert act(stack_link, prefix=str(place), state="pruned") == MODULE
    place.chmod(0o777)
    assert act(stack_link, **arguments) == MODULE


def test_an_environment_that_is_whole_since_this_boot(
    act: Act, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = place / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    monkeypatch.setattr(environment, "push_files", lambda *_: {})
    asked = {"path": str(place / "stack"), "layer": "x", "wheels": [str(wheel)]}
    (place / "stack").mkdir()
    digest = environment._layer_digest(asked)

    def finish(digest: str) -> None:
        environment_module.finish(place / "stack", "x", digest)

    finish(digest)
    assert act(environment, **asked) == {"changed": False}
    for other in (digest[:-1], ""):
        finish(other)
        with pytest.raises(KeyError):  # the module is asked, and would say its digest
            act(environment, **asked)
    finish(digest)
    marker = environment_module.marker(place / "stack", "x")
    marker.write_text(f"{digest} another-boot\n")
    with pytest.raises(KeyError):
        act(environment, **asked)


def test_a_host_that_lets_the_head_in(
    act: Act, place: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, keys = place / "home", place / "keys"
    for folder in (home, keys):
        folder.mkdir()
    (keys / "ssh_host_a_key.pub").write_text("ssh-ed25519 QUJD root@a\n")
    (keys / "ssh_host_b_key.pub").write_text("ssh-dss QUJD root@a\n")
    pattern = f"{keys}/ssh_host_*_key.pub"
    monkeypatch.setattr(mesh_member_module, "KEYS", pattern)
    monkeypatch.setattr(
        mesh_member_module.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(home))
    )
    lines = mesh_member.LINES.replace(mesh_member.HOME, str(home)).replace(
        mesh_member.KEYS, pattern
    )
    monkeypatch.setattr(mesh_member, "LINES", lines)
    arguments = {
        "public_key": "ssh-ed25519 QUJDRA== ftcluster-mesh@head", "address": "10.0.0.1",
        "folder": "/opt/ftcluster/mesh",
    }  # fmt: skip
    assert act(mesh_member, **arguments) == MODULE
    made = run_module(mesh_member_module.main, **arguments)
    assert made == made | {"changed": True, "host_keys": ["ssh-ed25519 QUJD"]}
    found = act(mesh_member, **arguments)
    assert found == {"changed": False, "host_keys": ["ssh-ed25519 QUJD"]}
    assert act(mesh_member, **(arguments | {"address": "10.0.0.2"})) == MODULE
    assert act(mesh_member, **(arguments | {"state": "absent"})) == MODULE
    with (home / ".ssh/authorized_keys").open("a") as file:
        file.write("ssh-ed25519 AAAA ftcluster-mesh@another\n")
    assert act(mesh_member, **arguments) == MODULE


@pytest.mark.needs("ssh-keygen")
def test_a_head_that_trusts_its_hosts(act: Act, place: Path, run_module: Any) -> None:
    folder = str(place / "mesh")
    arguments: dict[str, Any] = {"folder": folder, "address": "10.0.0.1"}
    assert act(mesh_head, **arguments) == MODULE
    made = run_module(mesh_head_module.main, **arguments)
    same = {"changed": False, "public_key": made["public_key"], "address": "10.0.0.1"}
    assert act(mesh_head, **arguments) == same
    member = {"port": 22, "user": "ops", "host_keys": ["ssh-ed25519 QUJD"]}
    members = [{"name": name, "address": name, **member} for name in ("a", "b")]
    arguments |= {"members": members, "names": ["a", "b"]}
    assert act(mesh_head, **arguments) == MODULE
    assert run_module(mesh_head_module.main, **arguments)["changed"]
    assert act(mesh_head, **arguments) == same
    # of a part of the hosts, the others stay as they are known
    assert act(mesh_head, **(arguments | {"members": members[1:]})) == same
    assert act(mesh_head, **(arguments | {"names": ["b", "a"]})) == MODULE
    assert act(mesh_head, **(arguments | {"address": "10.0.0.9"})) == MODULE
    members[0]["host_keys"] = ["ssh-ed25519 REVG"]
    assert act(mesh_head, **arguments) == MODULE
    (place / "mesh/mesh.json").write_text("[torn")
    assert act(mesh_head, **arguments) == MODULE


@pytest.fixture
def ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lock of the setup `c 55 7` is or is not."""
    monkeypatch.setattr(setup_lock, "control_id", lambda: "c")
    monkeypatch.setattr(setup_lock, "started", lambda _: "7")
    monkeypatch.setenv("FTCLUSTER_PID", "55")
    return place / setup_lock.NAME


@pytest.fixture
def guarded(ours: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where all folders on the way are as if only this user may write there."""
    script = setup_lock.GUARDED.replace("{paths}", shlex.quote(str(ours.parent)))
    monkeypatch.setattr(setup_lock, "GUARDED", script.replace("{", "{{").replace("}", "}}"))
    return ours


def test_a_lock_is_released_if_it_is_ours(act: Act, guarded: Path) -> None:
    arguments = {"prefix": str(guarded.parent), "state": "released"}
    guarded.write_text('{"owner": "c 55 7", "control": "c"}\n')
    assert act(setup_lock, check=True, **arguments) == MODULE
    assert guarded.exists()
    assert act(setup_lock, **arguments) == {"changed": False}
    assert not guarded.exists()
    assert act(setup_lock, **arguments) == {"changed": False}
    guarded.write_text('{"owner": "c 55 71", "control": "c"}\n')
    assert act(setup_lock, **arguments) == MODULE  # which leaves alone what is another one's
    assert guarded.exists()


def test_a_free_lock_is_taken_as_the_module_would(act: Act, guarded: Path) -> None:
    assert act(setup_lock, check=True, prefix=str(guarded.parent)) == MODULE
    assert not guarded.exists()
    for _ in range(2):  # also at a later stage of the same setup
        assert act(setup_lock, prefix=str(guarded.parent)) == {"changed": False}
        lock = setup_lock_module.read_lock(guarded)
        assert (lock["owner"], lock["control"], lock["boot"]) == ("c 55 7", "c", boot_id())
        assert abs(lock["since"] - time.time()) < 60
        assert stat.S_IMODE(guarded.stat().st_mode) == 0o644


def test_the_module_decides_where_the_lock_is_not_free(act: Act, guarded: Path) -> None:
    prefix = guarded.parent
    assert act(setup_lock, prefix=str(prefix / "none")) == MODULE
    guarded.write_text('{"owner": "other"}\n')
    assert act(setup_lock, prefix=str(prefix)) == MODULE
    guarded.unlink()
    guarded.symlink_to(prefix / "elsewhere")
    assert act(setup_lock, prefix=str(prefix)) == MODULE
    guarded.unlink()
    prefix.chmod(0o775)
    assert act(setup_lock, prefix=str(prefix)) == MODULE
    assert not guarded.exists()
    assert not (prefix / "elsewhere").exists()


def test_the_module_decides_where_a_stack_is_going_to_change(act: Act, guarded: Path) -> None:
    stack, wheel = guarded.parent / "stack", guarded.parent / "wheel"
    arguments = {"prefix": str(guarded.parent), "stacks": [str(stack)], "node_package": str(wheel)}
    assert act(setup_lock, **arguments) == MODULE
    wheel.write_text("a wheel")
    stack.mkdir()
    (stack / setup_lock.COMPLETE).write_text("other boot\n")
    assert act(setup_lock, **arguments) == MODULE
    assert not guarded.exists()
    (stack / setup_lock.COMPLETE).write_text(f"{sha256(b'a wheel').hexdigest()} boot\n")
    assert act(setup_lock, **arguments) == {"changed": False}
    assert guarded.exists()
