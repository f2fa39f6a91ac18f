import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from plugins.plugin_utils import push
from plugins.plugin_utils.push import push_files, tar_of


class Action:
    """An action plugin whose host is this one."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []

    def _low_level_execute_command(
        self, command: str, sudoable: bool, in_data: bytes | None
    ) -> dict[str, Any]:
        assert sudoable
        assert in_data, "with a terminal, stderr would come as stdout"
        self.sent.append((command.split()[0], len(in_data or b"")))
        done = subprocess.run(
            ["sh", "-c", command], input=in_data or b"", capture_output=True, check=False
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return {"rc": done.returncode, "stdout": out, "stderr": err}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def files(source: Path, **sizes: int) -> list[tuple[Path, str]]:
    """Files of so many bytes with names where _ stands for a sub-folder."""
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
    assert [program for program, _ in action.sent] == ["rm", "tar"]


def test_the_folder_is_new_and_for_its_owner_only(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "with a space" / "it's there"
    there.mkdir(parents=True)
    (there / "old").touch()
    pairs = files(source, a=10)
    push_files(Action(), pairs, str(there))
    assert same(pairs, there)
    assert there.stat().st_mode & 0o777 == 0o700
    assert (there / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("size", [1000, 1001, 2500, 3000])
def test_a_large_file_goes_in_pieces(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 1000)
    action, pairs = Action(), files(source, a=10, sub_large=size, b=20)
    push_files(action, pairs, str(tmp_path / "there"))
    assert same(pairs, tmp_path / "there")
    pieces = [length for program, length in action.sent if program == "cat"]
    assert sum(pieces) == size
    assert max(pieces) <= 1000


def test_many_small_files_go_in_several_tars(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 1000)
    action, pairs = Action(), files(source, a=400, b=400, c=400, d=999)
    push_files(action, pairs, str(tmp_path / "there"))
    assert same(pairs, tmp_path / "there")
    assert [program for program, _ in action.sent] == ["rm", "tar", "tar", "tar"]


def test_no_files_make_an_empty_folder(tmp_path: Path) -> None:
    push_files(Action(), [], str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir()) == []


def test_what_the_host_says_is_told_with_the_place(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    there = str(tmp_path / "file" / "there")
    with pytest.raises(AnsibleActionFail) as caught:
        push_files(Action(), files(source, a=1), there)
    assert str(caught.value).startswith(f"{there} cannot be written: ")
    assert "Not a directory" in str(caught.value)


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
            if command.startswith("cat"):
                return {"rc": 1, "stdout": "cat: write error: No space left on device\n"}
            return super()._low_level_execute_command(command, sudoable, in_data)

    with pytest.raises(AnsibleActionFail, match="/there/taken/large cannot be written: cat: write"):
        push_files(Refuses(), pairs, str(tmp_path / "there"))
    with pytest.raises(AnsibleActionFail, match="/there cannot be written: "):
        push_files(Action(), [*small, (small[0][0], "taken/below")], str(tmp_path / "there"))


def test_a_tar_has_names_and_texts_and_nobodys_account(source: Path) -> None:
    pairs = files(source, a=10, sub_b=20)
    with tarfile.open(fileobj=io.BytesIO(tar_of(pairs))) as tar:
        members = tar.getmembers()
        assert [(m.name, m.size, m.uname, m.mode) for m in members] == [
            ("a", 10, "", 0o644), ("sub/b", 20, "", 0o644),
        ]  # fmt: skip
        text = tar.extractfile("sub/b")
        assert text is not None
        assert text.read() == pairs[1][0].read_bytes()
