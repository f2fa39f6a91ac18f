import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import bundle as module
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    AGAIN,
    HEAD,
    Bundle,
    BundleError,
    hold,
    open_bundle,
    sha256_of_head,
    write_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheelhouse,
    check,
)

from tests.unit.wheels import left, write_wheel

TARGET = Target("3.11", "2.28", "x86_64")
BARE = Wanted("native", "tool-kit==1.0\nother==2.0\n", allow_unverified=True)
TOOL, OTHER = "tool_kit-1.0-py3-none-any.whl", "other-2.0-py3-none-any.whl"


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    folder = tmp_path / "house"
    write_wheel(folder, "tool_kit", "1.0", "other " * 500)
    write_wheel(folder, "other", "2.0")
    wheels = check(folder, BARE, "3.11")
    return Wheelhouse(folder, wheels, ("worth knowing",))


@pytest.fixture
def path(tmp_path: Path, house: Wheelhouse) -> Path:
    """Write a valid bundle."""
    path = tmp_path / "new" / "my.ftbundle"
    write_bundle(Bundle("native", "1b2c3d", TARGET, house), path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def rewrite(
    path: Path,
    head: Callable[[dict[str, Any]], object] = lambda _: None,
    text: Callable[[bytes], bytes] = lambda text: text,
    entries: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object] = lambda _: None,
) -> None:
    """Rewrite a bundle with a changed head (with a valid hash), other text or other entries."""
    with tarfile.open(path) as tar:
        found = [(entry, tar.extractfile(entry).read()) for entry in tar]  # type: ignore[union-attr]
    document = json.loads(found[0][1])
    head(document)
    document["sha256"] = sha256_of_head(document)
    found[0] = (found[0][0], text(json.dumps(document).encode()))
    entries(found)
    with tarfile.open(path, "w") as tar:
        for entry, content in found:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


# --- round trip


def test_what_was_written_is_read(
    path: Path, house: Wheelhouse, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(path, cache)
    assert (opened.stack, opened.digest, opened.target) == ("native", "1b2c3d", TARGET)
    assert opened.house.wheels == house.wheels
    assert opened.house.notices == ("worth knowing",)
    assert opened.house.folder.parent == cache
    for name in house.wheels:
        assert (opened.house.folder / name).read_bytes() == (house.folder / name).read_bytes()
    # a tar that is readable for everybody
    with tarfile.open(path, "r:") as tar:
        assert tar.getnames() == [HEAD, OTHER, TOOL]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    # the second call does not unpack it again

    def refuse(*_: object) -> None:
        raise AssertionError("unpacked again")

    monkeypatch.setattr(module, "unpack", refuse)
    assert open_bundle(path, cache) == opened


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "wheels"])
def test_with_a_damaged_cache_it_is_unpacked_again(path: Path, cache: Path, damage: str) -> None:
    house = open_bundle(path, cache).house
    content = (house.folder / TOOL).read_bytes()
    if damage == "cut":
        (house.folder / TOOL).write_bytes(content[:-1])
    elif damage == "gone":
        shutil.rmtree(house.folder)
    elif damage == "manifest":
        (house.folder / "wheels.json").write_text("{")
    else:
        (house.folder / "wheels.json").write_text('{"wheels": {}, "notices": []}')
    assert open_bundle(path, cache).house == house
    assert (house.folder / TOOL).read_bytes() == content
    assert left(cache) == [house.folder.name]


def test_another_bundle_of_the_same_name_is_another(
    path: Path, house: Wheelhouse, cache: Path
) -> None:
    first = open_bundle(path, cache)
    write_bundle(Bundle("intel-2.8", "4e5f", TARGET, house), path)
    second = open_bundle(path, cache)
    assert (first.stack, second.stack) == ("native", "intel-2.8")
    assert first.house.folder != second.house.folder


# --- damage: a damaged bundle is refused completely


def wheel(name: str, content: bytes = b"wheel") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def renamed(name: str) -> Callable[[dict[str, Any]], object]:
    """Rename a wheel in the head."""
    return lambda head: head["wheels"].update({name: head["wheels"].pop(TOOL)})


def header(kind: bytes, name: str, size: int) -> bytes:
    """Return a tar header with a false size."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.USTAR_FORMAT)


def sparse(path: Path, size: int) -> None:
    """Replace the last wheel by a member of 512 bytes that unpacks to `size` bytes."""
    entry = tarfile.TarInfo(TOOL)
    entry.size = 512
    entry.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": TOOL,
        "GNU.sparse.realsize": str(size),
    }  # fmt: skip
    rewrite(path, lambda head: head["wheels"][TOOL].update(size=size))
    with tarfile.open(path) as tar:
        (*_, last) = tar
    whole = path.read_bytes()
    blocks = (b"1\n%d\n0\n" % size).ljust(512, b"\0")
    path.write_bytes(
        whole[: last.offset] + entry.tobuf(tarfile.PAX_FORMAT) + blocks + bytes(len(whole))
    )


Damage = Callable[[Path], object]
Entries = list[tuple[tarfile.TarInfo, bytes]]


def head(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda path: rewrite(path, change)


def listed(**changes: Any) -> Damage:
    """Replace the wheel in the list by another."""
    return head(lambda head: head["wheels"][TOOL].update(changes))


def written(change: Callable[[bytes], bytes]) -> Damage:
    """Replace the text of the list."""
    return lambda path: rewrite(path, text=change)


def entries(change: Callable[[Entries], object]) -> Damage:
    return lambda path: rewrite(path, entries=change)


def before(*headers: bytes) -> Damage:
    return lambda path: path.write_bytes(b"".join(headers) + path.read_bytes())


LONG, PAX = header(b"L", "name", 7 << 30), header(b"x", "pax", 0)
NO_SIZE, NOT_WHEELS = "the size or the SHA-256 of", "files that are not wheels"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda path: path.write_bytes(b""), "empty file"),
    "zip": (lambda path: write_wheel(path.parent, "a", "1").replace(path), ""),
    "tar of something else": (entries(lambda found: found.pop(0)), f"does not begin with {HEAD}"),
    "another python": (
        written(lambda text: text.replace(b'"3.11"', b'"3.12"')), f"the checksum of {HEAD}"
    ),
    "head not JSON": (written(lambda _: b"{"), ""),
    "head a list": (written(lambda _: b"[1]"), ""),
    "head without its hash": (written(lambda text: text.replace(b'"sha256":', b'"sha255":')), ""),
    "head too large": (
        written(lambda text: text + b" " * module.HEAD_BYTES), f"does not begin with {HEAD}"
    ),
    "no target": (head(lambda head: head.pop("target")), "target"),
    "no wheels": (head(lambda head: head.update(wheels={})), "is not in its list"),
    "a wheel without its hash": (head(lambda head: head["wheels"][TOOL].pop("sha256")), ""),
    "another hash": (listed(sha256="0" * 64), f"the SHA-256 of {TOOL} is"),
    "another format": (
        head(lambda head: head.update(format=0)),
        "its format is 0, but this ftcluster reads 1",
    ),
    "a name with a slash": (head(renamed("../a-1-py3-none-any.whl")), NOT_WHEELS),
    "a name that is not a wheel's": (head(renamed("wheels.json")), NOT_WHEELS),
    "a file too many": (
        entries(lambda found: found.append(wheel("more.whl"))), "'more.whl' is not in its list"
    ),
    "a file outside": (
        entries(lambda found: found.append(wheel("../../escaped"))), "escaped' is not in its list"
    ),
    "a link in a wheel's place": (
        entries(lambda found: setattr(found[-1][0], "type", tarfile.SYMTYPE)),
        f"'{TOOL}' is not a plain file",
    ),
    "the list a second time": (
        entries(lambda found: found.append(found[0])), f"'{HEAD}' is not in its list"
    ),
    "another size": (listed(size=7), f"{TOOL} has "),
    "a size that is no number": (listed(size="7"), NO_SIZE),
    "a size below zero": (listed(unpacked=-1), NO_SIZE),
    "too many wheels": (
        head(lambda head: head["wheels"].update(
            {f"a{n}.whl": head["wheels"][TOOL] for n in range(module.MAX_WHEELS)}
        )),
        "lists more than 10,000 wheels",
    ),
    "a deep head": (written(lambda _: b"[" * 100_000), "while decoding"),
    "a number without end": (written(lambda _: b'{"format": ' + b"9" * 10_000 + b"}"), "digits"),
    "a pax header without end": (before(header(b"x", "pax", 7 << 30)), "'pax' is not a plain file"),
    "a long name without end": (before(LONG), "'name' is not a plain file"),
    "headers that end in headers": (before(PAX * 3000), "'pax' is not a plain file"),
    "a long name without end behind a header": (before(PAX, LONG), "'name' is not a plain file"),
    "a header and nothing behind it": (
        lambda path: path.write_bytes(PAX), "'pax' is not a plain file"
    ),
    "a sparse wheel": (lambda path: sparse(path, 3000), f"'{TOOL}' is not in its list"),
    "a sparse wheel larger than any disk": (
        lambda path: sparse(path, 1 << 50), "the sizes in its list exceed the size of the file"
    ),
    "a sparse file of old GNU tar": (before(header(b"S", TOOL, 0)), "is not a plain file"),
    "a file missing": (entries(lambda found: found.pop()), f"{TOOL} is missing"),
}  # fmt: skip


def test_a_bundle_of_a_newer_version_is_not_called_damaged(path: Path, cache: Path) -> None:
    head(lambda head: head.update(format=2))(path)
    with pytest.raises(BundleError) as caught:
        open_bundle(path, cache)
    assert str(caught.value) == (
        f"{path} was written by a newer ftcluster (format 2, this one reads 1): upgrade this "
        "ftcluster, or rebuild the bundle with it"
    )


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_bundle_is_refused_whole(
    path: Path, cache: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(path)
    with pytest.raises(BundleError) as caught:
        open_bundle(path, cache)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged or not a bundle (")
    assert message.endswith(f"); {AGAIN}")
    assert words in message
    assert left(cache) == []
    assert not list(cache.parent.glob("**/escaped"))


def test_every_place_where_it_can_be_cut_is_noticed(
    path: Path, cache: Path, house: Wheelhouse
) -> None:
    content = path.read_bytes()
    whole = content.rstrip(b"\0")
    for size in range(0, len(whole), 97):
        path.write_bytes(content[:size])
        with pytest.raises(BundleError):
            open_bundle(path, cache)
        assert left(cache) == []
    # a damaged byte is detected, or has no effect
    for place in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            opened = open_bundle(path, cache)
        except BundleError:
            assert left(cache) == []
        else:  # the byte is padding of the tar
            assert opened.house.wheels == house.wheels
            assert (opened.stack, opened.target) == ("native", TARGET)
            shutil.rmtree(opened.house.folder)


# --- comparison with the local lock


def locked(house: Wheelhouse) -> Wanted:
    lines = (f"{name.split('-')[0]}=={name.split('-')[1]} --hash=sha256:{wheel.sha256}"
             for name, wheel in house.wheels.items())  # fmt: skip
    return Wanted("native", "\n".join(lines))


def forge(path: Path, name: str) -> str:
    """Put another wheel and its hash into a bundle and its list; return the hash."""
    content = write_wheel(path.parent / "forged", "evil", "1.0").read_bytes()
    digest = hashlib.sha256(content).hexdigest()

    def entries(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        found[:] = [(e, content if e.name == name else c) for e, c in found]

    def head(document: dict[str, Any]) -> None:
        document["wheels"][name].update(sha256=digest, size=len(content))

    rewrite(path, head, entries=entries)
    return digest


def test_a_wheel_that_was_changed_with_the_bundles_list_is_refused_by_its_name(
    tmp_path: Path, house: Wheelhouse, cache: Path
) -> None:
    wanted, path = locked(house), tmp_path / "my.ftbundle"
    write_bundle(Bundle("native", wanted.digest, TARGET, house), path)
    hold(open_bundle(path, cache), path, wanted)
    digest = forge(path, TOOL)
    forged = open_bundle(path, cache)  # the bundle itself is consistent
    with pytest.raises(BundleError) as caught:
        hold(forged, path, wanted)
    first, problem, *_ = str(caught.value).splitlines()
    assert first == f"{path} does not match the lock:"
    assert problem == f"the SHA-256 of {TOOL}, {digest}, is not in the list of versions"
    assert not forged.house.folder.exists()


# --- files that cannot be read or written


@pytest.mark.parametrize(
    ("name", "words"),
    [(".", ": Is a directory"), ("none", ": No such file"), ("pipe", " is not a file")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, cache: Path, name: str, words: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match=f"^{tmp_path / name}{words}"):
        open_bundle(tmp_path / name, cache)
    assert left(cache) == []


def test_a_cache_without_space_or_that_cannot_be_made_is_named(
    path: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(BundleError, match=f"^{tmp_path}/taken.*: (Not a directory|File exists)"):
        open_bundle(path, tmp_path / "taken" / "below")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/cache/x")

    monkeypatch.setattr(module, "copy", full)
    with pytest.raises(BundleError, match=r"^/cache/x: No space left on device"):
        open_bundle(path, cache)
    assert left(cache) == []
    # too little space is detected before unpacking
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(
        BundleError, match=rf"need [\d,]+ bytes in {cache} .+ 100 bytes are free; free some space"
    ):
        open_bundle(path, cache)
    assert left(cache) == []


def test_a_place_that_cannot_be_written_is_named(
    house: Wheelhouse, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BundleError, match=r"^/proc/.+: "):
        write_bundle(Bundle("native", "1b2c3d", TARGET, house), Path("/proc/my.ftbundle"))
    # a bundle that cannot be completed does not change the previous file
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BundleError, match=f"^{path}: No space left on device"):
        write_bundle(Bundle("intel-2.8", "4e5f", TARGET, house), path)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_wheelhouse_that_lost_a_file_makes_no_bundle(path: Path, house: Wheelhouse) -> None:
    house.files[0].unlink()
    with pytest.raises(BundleError, match=f"{OTHER}: No such file"):
        write_bundle(Bundle("native", "1b2c3d", TARGET, house), path.with_name("b.ftbundle"))
    assert [found.name for found in path.parent.iterdir()] == [path.name]
