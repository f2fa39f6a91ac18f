import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.ftcluster.cluster.plugins.action import push as action_module
from ansible_collections.ftcluster.cluster.plugins.module_utils import stale
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import tree_sha256
from ansible_collections.ftcluster.cluster.plugins.modules import push as module
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import push
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import push_files, tar_of

from tests.unit.hosts import Action, plugin


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def files(source: Path, **sizes: int) -> list[tuple[Path, str]]:
    """Write files of these sizes; _ in a name stands for a subfolder."""
    pairs = []
    for name, size in sizes.items():
        (source / name).write_bytes(bytes(n % 251 for n in range(size)))
        pairs.append((source / name, name.replace("_", "/")))
    return pairs


def same(pairs: list[tuple[Path, str]], folder: Path) -> bool:
    arrived = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return arrived == {name for _, name in pairs} and all(
        path.read_bytes() == (folder / name).read_bytes() for path, name in pairs
    )


def test_small_files_go_together(source: Path, tmp_path: Path) -> None:
    action, pairs = Action(), files(source, a=10, b=0, sub_c=3000, sub_deep_d=1)
    push_files(action, pairs, str(tmp_path / "there"))
    assert same(pairs, tmp_path / "there")
    assert len(action.sent) == 1
    # without files, the folder is empty
    push_files(Action(), [], str(tmp_path / "empty"))
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_folder_is_new_and_for_its_owner_only(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "with a space" / "it's there"
    pairs = files(source, a=10)
    push_files(Action(), pairs, str(there))
    assert same(pairs, there)
    with pytest.raises(AnsibleActionFail, match="File exists"):
        push_files(Action(), pairs, str(there))  # never write into another user's folder
    assert there.stat().st_mode & 0o777 == 0o700
    assert (there / "a").stat().st_mode & 0o777 == 0o644
    # the host's error is reported with the path
    (tmp_path / "file").touch()
    taken = str(tmp_path / "file" / "there")
    with pytest.raises(AnsibleActionFail) as caught:
        push_files(Action(), files(source, a=1), taken)
    assert str(caught.value).startswith(f"{taken} cannot be written: ")
    assert "File exists" in str(caught.value)


@pytest.mark.parametrize("size", [1000, 1001, 2500, 3000])
def test_a_large_file_goes_in_pieces(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 1000)
    action, pairs = Action(), files(source, a=10, sub_large=size, b=20)
    push_files(action, pairs, str(tmp_path / "there"))
    assert same(pairs, tmp_path / "there")
    *pieces, small = action.sent
    assert sum(pieces) == size
    assert max(pieces) <= 1000
    assert small > 30  # the tar


def test_many_small_files_go_in_several_tars(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 1000)
    action, pairs = Action(), files(source, a=400, b=400, c=400, d=999)
    push_files(action, pairs, str(tmp_path / "there"))
    assert same(pairs, tmp_path / "there")
    assert len(action.sent) == 3
    # the hash identifies the sent data
    pairs = files(source, a=10, b=0, sub_large=2500)
    sent = push_files(Action(), pairs, str(tmp_path / "again"))
    assert sent == {
        name.encode(): hashlib.sha256(path.read_bytes()).digest() for path, name in pairs
    }
    assert module.found_in(tmp_path / "again") == sent
    assert push_files(Action(), pairs, str(tmp_path / "third"), hashed=False) == {}
    assert module.found_in(tmp_path / "third") == sent


def test_a_large_file_that_cannot_be_written_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 10)
    pairs = [(path, "taken/large") for path, _ in files(source, large=25)]
    small = [(path, "taken") for path, _ in files(source, taken=2)]

    class Refuses(Action):
        def _low_level_execute_command(
            self, command: str, sudoable: bool, in_data: bytes | None
        ) -> dict[str, Any]:
            if "cat >>" in command:
                return {"rc": 1, "stdout": "cat: write error: No space left on device\n"}
            return super()._low_level_execute_command(command, sudoable, in_data)

    with pytest.raises(AnsibleActionFail, match="/there/taken/large cannot be written: cat: write"):
        push_files(Refuses(), pairs, str(tmp_path / "there"))
    with pytest.raises(AnsibleActionFail, match="/there cannot be written: "):
        push_files(Action(), [*small, (small[0][0], "taken/below")], str(tmp_path / "there"))


def test_a_tar_has_names_and_texts_and_nobodys_account(source: Path) -> None:
    pairs = files(source, a=10, sub_b=20)
    with tarfile.open(fileobj=io.BytesIO(tar_of(pairs, {}))) as tar:
        members = tar.getmembers()
        assert [(m.name, m.size, m.uname, m.mode) for m in members] == [
            ("a", 10, "", 0o644), ("sub/b", 20, "", 0o644),
        ]  # fmt: skip
        text = tar.extractfile("sub/b")
        assert text is not None
        assert text.read() == pairs[1][0].read_bytes()
    # headers have no names that tar on a host with a Latin-1 locale would misread
    (source / "a").rename(source / "größe")
    packed = tar_of([(source / "größe", "größe")], {})
    assert packed[:100].rstrip(b"\0") == "größe".encode()


# --- a folder gets its final name when it is complete


def test_the_hash_of_a_folder_changes_with_names_and_contents() -> None:
    one, other = hashlib.sha256(b"1").digest(), hashlib.sha256(b"2").digest()
    trees: list[dict[bytes, bytes]] = [
        {}, {b"a": one}, {b"b": one}, {b"a": other}, {b"a": one, b"b": one},
        {b"a": one, b"b": other}, {b"a": other, b"b": one}, {b"a/b": one}, {b"a\nb": one},
    ]  # fmt: skip
    assert len({tree_sha256(tree) for tree in trees}) == len(trees)
    assert tree_sha256({b"b": one, b"a": other}) == tree_sha256({b"a": other, b"b": one})


class Host(Action):
    """A host whose part of the action runs here; a test can change the data on the way."""

    def __init__(self, on_the_way: Callable[[bytes], bytes] = lambda data: data) -> None:
        super().__init__()
        self.on_the_way = on_the_way
        self.before_the_name: Callable[[], object] = lambda: None
        self.steps: list[str] = []

    def _low_level_execute_command(
        self, command: str, sudoable: bool, in_data: bytes | None
    ) -> dict[str, Any]:
        assert in_data
        return super()._low_level_execute_command(command, sudoable, self.on_the_way(in_data))

    def execute_module(self, _name: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        sent, path = arguments["from_action"], Path(arguments["path"])
        new = Path(sent["new"])
        self.before_the_name()
        try:
            changed = module.finish(new, path, sent["sha256"])
        except ValueError as error:
            return {"failed": True, "msg": str(error)}
        self.steps.append("named")
        if not changed:
            shutil.rmtree(new)
        return {"changed": changed}

    def push(self, source: Path, path: Path, **more: Any) -> dict[str, Any]:
        action = plugin(action_module, {"source": str(source), "path": str(path), **more})
        action._low_level_execute_command = self._low_level_execute_command
        action._execute_module = self.execute_module
        result: dict[str, Any] = action.run(None, {})
        return result


NAMES = [
    b"plain", b"a b", b"it's", b'"', b"$HOME `id`", b"new\nline", b"back\\slash", b"-rf",
    b"\xff\xfe", b"tab\t", b"cr\r", b"sub/\xe9/x", b"*", b"{{ x }}",
    "ü".encode() * 60,
]  # fmt: skip


def test_every_name_and_byte_arrives(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES):
        path = source / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes(range(256)) * number)
    host, there, write = Host(), tmp_path / "there", module.to_disk

    def to_disk(folder: Path) -> None:
        write(folder)
        host.steps.append(f"on the disk: {folder.is_dir()}")

    monkeypatch.setattr(module, "to_disk", to_disk)
    assert host.push(source, there) == {"changed": True, "files": len(NAMES)}
    assert module.found_in(there) == module.found_in(source)
    assert host.steps == ["on the disk: True", "named"]
    assert [path.name for path in tmp_path.iterdir() if path != source] == ["there"]
    assert host.push(source, there) == {"changed": False}


def test_what_the_disk_does_not_take_gets_no_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(source, a=10)
    sync = tmp_path / "bin/sync"
    sync.parent.mkdir()
    sync.write_text("#!/bin/sh\necho no space >&2; exit 1\n")
    sync.chmod(0o755)
    monkeypatch.setenv("PATH", str(sync.parent), prepend=os.pathsep)
    host = Host()
    with pytest.raises(OSError, match="no space"):
        host.push(source, tmp_path / "there")
    assert "named" not in host.steps
    assert not (tmp_path / "there").exists()


def test_what_leads_out_of_the_folder_is_not_sent(source: Path, tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("secret")
    files(source, a=10)
    (source / "README.md").symlink_to("../id_ed25519")
    for more in ({}, {"files": ["a", "README.md"]}, {"files": ["../id_ed25519"]}):
        host = Host()
        with pytest.raises(AnsibleActionFail, match=r"id_ed25519'?: leads out of the folder"):
            host.push(source, tmp_path / "there", **more)
        assert len(host.sent) == 1  # the only command asks if the folder exists
    assert sorted(path.name for path in tmp_path.iterdir()) == ["id_ed25519", "source"]


def test_a_file_that_becomes_a_link_meanwhile_is_not_sent(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "id_ed25519").write_text("secret")
    files(source, a=10)
    found = action_module.source_files

    def exchanged(folder: Path) -> list[tuple[Path, str]]:
        pairs: list[tuple[Path, str]] = found(folder)
        (source / "a").unlink()
        (source / "a").symlink_to("../id_ed25519")
        return pairs

    monkeypatch.setattr(action_module, "source_files", exchanged)
    with pytest.raises(AnsibleActionFail, match="source/a cannot be sent: Too many levels of symb"):
        Host().push(source, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_one_file_is_sent_under_the_name_that_the_user_wrote(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("a,b\n")
    (tmp_path / "rows.csv").symlink_to("blob")
    assert Host().push(tmp_path / "rows.csv", tmp_path / "there")["files"] == 1
    assert (tmp_path / "there" / "rows.csv").read_text() == "a,b\n"


def test_a_byte_that_flips_on_the_way_is_noticed(source: Path, tmp_path: Path) -> None:
    files(source, a=5000, b=10)

    def flip(data: bytes) -> bytes:
        return data.replace(bytes(range(100)), bytes(range(99)) + b"x", 1)

    host = Host(flip)
    result = host.push(source, tmp_path / "there")
    assert result["failed"]
    assert "the SHA-256 of the received files is" in result["msg"]
    assert "named" not in host.steps
    assert list(tmp_path.iterdir()) == [source]  # no temporary files remain
    assert Host().push(source, tmp_path / "there")["changed"]


def test_two_at_once_do_not_meet(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 1000)
    files(source, a=10, large=4500)
    there, fast = tmp_path / "there", Host()

    def second(data: bytes) -> bytes:
        if len(slow.sent) == 2 and not fast.sent:  # during the first transfer
            assert fast.push(source, there) == {"changed": True, "files": 2}
        return data

    slow = Host(second)
    assert slow.push(source, there) == {"changed": False, "files": 2}
    assert fast.sent
    assert module.found_in(there) == module.found_in(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "there"]


def test_one_that_is_broken_off_leaves_nothing(source: Path, tmp_path: Path) -> None:
    files(source, a=10)
    host = Host()

    def away() -> None:
        raise AnsibleActionFail("the host is away")

    host.before_the_name = away
    with pytest.raises(AnsibleActionFail, match="the host is away"):
        host.push(source, tmp_path / "there")
    assert list(tmp_path.iterdir()) == [source]


DAY = module.STALE_SECONDS + 60
KEPT = ["a.new-00000000", "other.new", "a.new-0000000g", "link.new-00000000", "a-4f7d1c0b2a9e"]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Make a folder with interrupted copies, and other files."""
    folder = tmp_path / "data"
    (tmp_path / "elsewhere" / "file").mkdir(parents=True)
    for name in (*KEPT, "old.new-0123abcd", "writing.new-00000000"):
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub" / "file").touch()
    shutil.rmtree(folder / "link.new-00000000")
    (folder / "link.new-00000000").symlink_to(tmp_path / "elsewhere")
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the boot id and the uptime of the machine."""
    now = {"boot": "one", "seconds": 100.0}
    monkeypatch.setattr(stale, "boot_id", lambda: now["boot"])
    monkeypatch.setattr(stale, "running_seconds", lambda: now["seconds"])
    return now


def test_what_broken_off_copies_left_goes_after_a_day(left: Path, clock: dict[str, Any]) -> None:
    module.remove_stale(left)
    clock["seconds"] += DAY
    for name in ("writing.new-00000000", KEPT[0]):
        with (left / name / "sub" / "file").open("a") as file:
            file.write("more")
    module.remove_stale(left)
    names = {path.name for path in left.iterdir()}
    assert names == {*KEPT, "writing.new-00000000", stale.RECORD}
    assert (left.parent / "elsewhere" / "file").is_dir()
    clock["seconds"] += DAY
    module.remove_stale(left)
    assert {path.name for path in left.iterdir()} == {*KEPT[1:], stale.RECORD}


def test_a_clock_that_is_set_forward_removes_no_fresh_copy(
    left: Path, clock: dict[str, Any]
) -> None:
    before = {path.name for path in left.iterdir()}
    module.remove_stale(left)
    for path in left.rglob("*"):  # as if all files were a year old
        os.utime(path, (1, 1), follow_symlinks=False)
    clock["seconds"] += 60
    module.remove_stale(left)
    clock.update(boot="two", seconds=DAY * 2)  # the uptime of another boot does not count
    module.remove_stale(left)
    (left / stale.RECORD).write_text("[" * 100_000)
    module.remove_stale(left)
    assert {path.name for path in left.iterdir()} == {*before, stale.RECORD}
