import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import wheelhouse
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Sources,
    Target,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import Pin
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    SPARE_BYTES,
    Wanted,
    Wheel,
    Wheelhouse,
    WheelhouseError,
    cache_dir,
    check,
    get_wheels,
    larger_build,
    read_wheelhouse,
    verify,
)

from tests.unit.wheels import left, write_wheel

TARGET = Target("3.11", "2.36", "x86_64")
LOCK = "# made by a tool\nTool_Kit==1.0\nother==2.0+cpu\n"
TOOL, OTHER = "tool_kit-1.0-py3-none-any.whl", "other-2.0+cpu-py3-none-any.whl"
NVIDIA = "nvidia_x-1.0-py3-none-any.whl"
WANTED = Wanted("stack", LOCK, allow_unverified=True)
SIZES = "# download {} bytes, unpacked {} bytes\n"


@dataclass
class Source:
    """A stand-in for pip that returns the same files for any request."""

    folder: Path
    gives: list[str] = field(default_factory=lambda: [TOOL, OTHER])
    gives_next: list[str] = field(default_factory=list)
    says: str = ""
    refuses: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[list[str], bool]] = field(default_factory=list)

    def pip(self, target: Target, _sources: Sources, folder: Path, _: object) -> SimpleNamespace:
        assert target.machine == "x86_64"

        def download(pins: Iterable[Pin], with_dependencies: bool = False) -> dict[str, str]:
            self.calls.append(([f"{pin.name}=={pin.version}" for pin in pins], with_dependencies))
            for name in (
                self.gives if len(self.calls) == 1 or not self.gives_next else self.gives_next
            ):
                shutil.copy(self.folder / name, folder)
            if self.says:
                raise DownloadError(self.says)
            return self.refuses

        return SimpleNamespace(download=download)


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    folder = tmp_path / "source"
    write_wheel(folder, "tool_kit", "1.0")
    write_wheel(folder, "tool_kit", "1.1")
    write_wheel(folder, "other", "2.0+cpu")
    write_wheel(folder, "torch", "1.0", "nvidia-x")
    write_wheel(folder, "nvidia_x", "1.0")
    source = Source(folder)
    monkeypatch.setattr(wheelhouse, "Pip", source.pip)
    return source


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def folder_with(folder: Path, *names: str) -> Path:
    """Make a folder with a wheel for each name."""
    folder.mkdir()
    for name in names:
        write_wheel(folder, "any", "1").rename(folder / name)
    return folder


def checked(folder: Path, lock: str, resolve: bool = False) -> dict[str, Wheel]:
    wanted = Wanted("stack", lock, resolve=resolve, allow_unverified=True)
    found: dict[str, Wheel] = check(folder, wanted, "3.11")
    return found


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- comparison of downloads with the lock


def test_sizes_and_hash_of_every_wheel(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "a", TOOL, OTHER)
    found = checked(folder, LOCK)
    assert list(found) == [OTHER, TOOL]
    content = (folder / TOOL).read_bytes()
    assert found[TOOL].size == len(content)
    assert found[TOOL].sha256 == hashlib.sha256(content).hexdigest()
    assert found[TOOL].unpacked > found[TOOL].size  # the wheel is compressed
    # one of several hashes suffices
    folder = folder_with(tmp_path / "b", TOOL)
    digest = hashlib.sha256((folder / TOOL).read_bytes()).hexdigest()
    hashes = f"--hash=sha256:{'0' * 64} --hash=sha256:{digest}"
    assert list(checked(folder, f"tool-kit==1.0 {hashes}")) == [TOOL]
    # a local version is a build of the same version
    assert list(checked(folder_with(tmp_path / "c", OTHER), "other==2.0\n")) == [OTHER]
    # packages that pip added are accepted if the lock is incomplete
    folder = folder_with(tmp_path / "d", TOOL, "extra-1.0-py3-none-any.whl")
    found = checked(folder, "tool-kit==1.0", resolve=True)
    assert list(found) == ["extra-1.0-py3-none-any.whl", TOOL]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([TOOL], "other is missing"),
        ([], "other, tool-kit is missing"),
        ([TOOL, OTHER, "extra-1.0-py3-none-any.whl"],
         "extra-1.0-py3-none-any.whl is not in the list of versions"),
        ([TOOL, OTHER, "README"], "README is not the name of a wheel"),
        (["tool_kit-1.1-py3-none-any.whl"], "tool_kit-1.1-py3-none-any.whl is not 1.0, as the "
         "list of versions requires\nother is missing"),
    ],
)  # fmt: skip
def test_what_is_not_as_the_lock_says_is_named(
    tmp_path: Path, names: list[str], words: str
) -> None:
    with pytest.raises(WheelhouseError) as caught:
        checked(folder_with(tmp_path / "a", *names), LOCK)
    problems, _, advice = str(caught.value).rpartition("\n")
    assert problems == words
    assert "pip config list" in advice


# --- wheelhouses


def test_wheels_are_downloaded_once(source: Source, cache: Path) -> None:
    house = get_wheels(WANTED, TARGET, Sources(), cache)
    assert [path.name for path in house.files] == [OTHER, TOOL]
    assert all(path.is_file() for path in house.files)
    assert house.sha256[TOOL] == hashlib.sha256((source.folder / TOOL).read_bytes()).hexdigest()
    assert get_wheels(WANTED, TARGET, Sources(), cache) == house
    assert source.calls == [(["tool-kit==1.0", "other==2.0+cpu"], False)]
    assert left(cache) == [house.folder.name]
    # downloaded again if a file is truncated or missing
    content = house.files[0].read_bytes()
    house.files[0].write_bytes(content[:-1])
    assert read_wheelhouse(house.folder) is None
    assert get_wheels(WANTED, TARGET, Sources(), cache).files[0].read_bytes() == content
    house.files[1].unlink()
    assert get_wheels(WANTED, TARGET, Sources(), cache).files[1].is_file()
    assert len(source.calls) == 3


def test_another_list_or_another_host_has_wheels_of_its_own(source: Source, cache: Path) -> None:
    for wanted, target in (
        (WANTED, TARGET),
        (WANTED, Target("3.12", "2.36", "x86_64")),
        (WANTED, Target("3.11", "2.28", "x86_64")),
        (Wanted("stack", f"{LOCK}# changed\n", allow_unverified=True), TARGET),
        (Wanted("stack", LOCK, more="nvidia-x==1.0\n", allow_unverified=True), TARGET),
    ):
        get_wheels(wanted, target, Sources(), cache)
    assert len(source.calls) == len(left(cache)) == 5


def test_a_list_that_is_not_complete_is_downloaded_with_dependencies(
    source: Source, cache: Path
) -> None:
    wanted = Wanted("stack", "tool-kit==1.0\n", resolve=True, allow_unverified=True)
    assert list(get_wheels(wanted, TARGET, Sources(), cache).wheels) == [OTHER, TOOL]
    assert source.calls == [(["tool-kit==1.0"], True)]


def test_the_second_list_is_for_builds_that_ask_for_it(source: Source, cache: Path) -> None:
    source.gives, source.gives_next = ["torch-1.0-py3-none-any.whl"], [NVIDIA]
    source.refuses = {"torch": "https://cpu: it is away"}
    wanted = Wanted("stack", "torch==1.0\n", more="nvidia-x==1.0\n", allow_unverified=True)
    house = get_wheels(wanted, TARGET, Sources(), cache)
    assert source.calls == [(["torch==1.0"], False), (["nvidia-x==1.0"], False)]
    assert list(house.wheels) == [NVIDIA, "torch-1.0-py3-none-any.whl"]
    assert house.notices[0].endswith("failed: https://cpu: it is away")
    assert get_wheels(wanted, TARGET, Sources(), cache).notices == house.notices


def hashed(source: Source, *names: str) -> str:
    """Return a lock with hashes of some files of the source."""
    lines = ["# another list"]
    for name in names:
        package, version = name.split("-")[:2]
        digest = hashlib.sha256((source.folder / name).read_bytes()).hexdigest()
        lines.append(f"{package}=={version} --hash=sha256:{digest}")
    return "\n".join(lines)


def test_another_list_takes_the_wheels_that_are_there(source: Source, cache: Path) -> None:
    first = get_wheels(WANTED, TARGET, Sources(), cache)
    source.gives_next = ["torch-1.0-py3-none-any.whl"]
    lock = hashed(source, TOOL, OTHER) + "\ntorch==1.0\n"
    house = get_wheels(Wanted("stack", lock, allow_unverified=True), TARGET, Sources(), cache)
    assert [names for names, _ in source.calls] == [
        ["tool-kit==1.0", "other==2.0+cpu"], ["torch==1.0"]
    ]  # fmt: skip
    assert sorted(house.wheels) == [OTHER, TOOL, "torch-1.0-py3-none-any.whl"]
    assert (house.folder / TOOL).samefile(first.folder / TOOL)


@pytest.mark.parametrize("damaged", [True, False])
def test_wheels_that_are_damaged_or_of_another_hash_are_downloaded(
    source: Source, cache: Path, damaged: bool
) -> None:
    house = get_wheels(WANTED, TARGET, Sources(), cache)
    lock = hashed(source, TOOL, OTHER)
    if damaged:
        path = house.folder / TOOL
        path.write_bytes(path.read_bytes()[::-1])
    else:
        lock = lock.replace(
            "tool_kit==1.0 --hash=sha256:", f"tool_kit==1.0 --hash=sha256:{'0' * 64} #"
        )
    source.gives_next = [TOOL]
    if damaged:
        get_wheels(Wanted("stack", lock), TARGET, Sources(), cache)
    else:
        with pytest.raises(WheelhouseError, match="is not in the list of versions"):
            get_wheels(Wanted("stack", lock), TARGET, Sources(), cache)
    assert source.calls[1][0] == ["tool-kit==1.0"]


def test_wheels_that_came_from_a_second_choice_are_not_taken(source: Source, cache: Path) -> None:
    torch = "torch-1.0-py3-none-any.whl"
    source.gives, source.gives_next = [torch], [NVIDIA]
    cuda = Wanted("stack", "torch==1.0\n", "nvidia-x==1.0\n", allow_unverified=True)
    get_wheels(cuda, TARGET, Sources(), cache)
    source.gives_next = [torch]
    get_wheels(Wanted("stack", hashed(source, torch)), TARGET, Sources(), cache)
    assert source.calls[2][0] == ["torch==1.0"]


def test_what_a_larger_build_costs(tmp_path: Path) -> None:
    for name, size in (("nvidia_x", 1_400_000_000), ("nvidia.y", 300_000_000), ("torch", 5)):
        with (tmp_path / f"{name}-1.0-py3-none-any.whl").open("wb") as file:
            file.truncate(size)
    found = larger_build(tmp_path, {"nvidia-x": None, "nvidia-y": None}, {})
    assert found.startswith("torch comes with 2 CUDA packages that CPUs do not use (1.7 GB more")
    assert found.endswith("pip's configured source has no build without them")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda source: setattr(source, "says", "no way"), "^stack: no way$"),
        (lambda source: setattr(source, "gives", [TOOL]), "other is missing"),
    ],
)
def test_a_download_that_fails_leaves_nothing(
    source: Source, cache: Path, change: Callable[[Source], None], words: str
) -> None:
    change(source)
    with pytest.raises(WheelhouseError, match=words):
        get_wheels(WANTED, TARGET, Sources(), cache)
    assert left(cache) == []
    source.says, source.gives = "", [TOOL, OTHER]
    assert len(get_wheels(WANTED, TARGET, Sources(), cache).files) == 2


def test_a_list_of_the_wrong_form_is_named(source: Source, cache: Path) -> None:
    with pytest.raises(WheelhouseError, match=r"^stack: 'torch>=2' is not of the form"):
        get_wheels(Wanted("stack", "torch>=2\n"), TARGET, Sources(), cache)
    assert source.calls == []


def free(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """Make the disk report these free bytes, one after the other."""
    left = iter(sizes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(left)))


def test_too_little_space_is_known_before_the_download(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 2_000_000_000 + SPARE_BYTES
    wanted = Wanted("stack", SIZES.format(2_000_000_000, 5) + LOCK, allow_unverified=True)
    free(monkeypatch, needed - 1)
    with pytest.raises(WheelhouseError) as caught:
        get_wheels(wanted, TARGET, Sources(), cache)
    assert str(caught.value) == (
        f"stack: 2,100,000,000 bytes of wheels must be downloaded into {cache} on the control "
        "node, but only 2,099,999,999 bytes are free; free some space, or set virtualenv_cache to "
        "a folder with more space"
    )
    assert source.calls == left(cache) == []
    free(monkeypatch, needed)
    get_wheels(wanted, TARGET, Sources(), cache)


def test_the_second_list_needs_space_of_its_own(
    source: Source, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.gives, source.gives_next = ["torch-1.0-py3-none-any.whl"], [NVIDIA]
    more = SIZES.format(3_000_000_000, 5) + "nvidia-x==1.0\n"
    free(monkeypatch, SPARE_BYTES, 10**9)
    with pytest.raises(WheelhouseError, match=r"^stack: 3\.1 GB of wheels"):
        get_wheels(Wanted("stack", "torch==1.0\n", more), TARGET, Sources(), cache)
    assert len(source.calls) == 1
    assert left(cache) == []


def test_a_full_disk_names_the_option_that_helps(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/cache/x")

    monkeypatch.setattr(wheelhouse, "check", full)
    with pytest.raises(WheelhouseError, match="/cache/x: No space left on device; set virtualenv_"):
        get_wheels(WANTED, TARGET, Sources(), cache)
    assert left(cache) == []


def test_a_cache_that_cannot_be_written_names_the_option_that_helps(
    tmp_path: Path, source: Source
) -> None:
    (tmp_path / "taken").write_text("a file")
    for cache in (tmp_path / "taken", tmp_path / "taken/below", Path("/proc")):
        words = f"^{cache}.*: .+; set virtualenv_cache to a writable folder"
        with pytest.raises(WheelhouseError, match=words):
            get_wheels(WANTED, TARGET, Sources(), cache)
    assert source.calls == []


def test_a_wheelhouse_is_verified_before_it_is_sent_and_dropped_if_it_is_damaged(
    cache: Path,
) -> None:
    house = get_wheels(WANTED, TARGET, Sources(), cache)
    verify(house, WANTED, "3.11", True)
    assert read_wheelhouse(house.folder) == house
    content = bytearray(house.files[0].read_bytes())
    content[5] ^= 1
    house.files[0].write_bytes(content)
    assert read_wheelhouse(house.folder) == house  # the size is right
    with pytest.raises(
        WheelhouseError, match=f"{OTHER[:9]}.+ has changed since its download\n.+was remo"
    ):
        verify(house, WANTED, "3.11", True)
    assert left(cache) == []
    with pytest.raises(WheelhouseError, match="No such file"):
        verify(house, WANTED, "3.11", True)  # the process for another host has removed it meanwhile


def test_a_wheel_of_the_cache_that_was_changed_with_its_manifest_is_not_sent(
    source: Source, cache: Path
) -> None:
    wanted = Wanted("stack", hashed(source, TOOL, OTHER))
    house = get_wheels(wanted, TARGET, Sources(), cache)
    path = house.folder / TOOL
    changed = path.read_bytes().replace(b"tool", b"evil")
    path.write_bytes(changed)
    manifest = house.folder / "wheels.json"
    digest = digest_of(path)
    manifest.write_text(manifest.read_text().replace(house.wheels[TOOL].sha256, digest))
    again = get_wheels(wanted, TARGET, Sources(), cache)
    with pytest.raises(WheelhouseError) as caught:
        verify(again, wanted, "3.11", True)
    assert f"the SHA-256 of {TOOL}, {digest}, is not in the list of versions" in str(caught.value)
    assert left(cache) == []


def test_a_file_without_a_hash_in_the_list_needs_a_word(source: Source, cache: Path) -> None:
    strict = Wanted("stack", hashed(source, TOOL) + "\nother==2.0\n")
    with pytest.raises(WheelhouseError) as caught:
        get_wheels(strict, TARGET, Sources(), cache)
    assert f"{OTHER} has no hash in the list of versions; add the hash, or" in str(caught.value)
    assert "torch_stack_allow_unverified (--allow-unverified)" in str(caught.value)
    assert TOOL not in str(caught.value)
    house = get_wheels(replace(strict, allow_unverified=True), TARGET, Sources(), cache)
    with pytest.raises(WheelhouseError, match="has no hash"):
        verify(house, strict, "3.11", True)  # the permission was for another call
    # the permission is only for these files
    lock = f"tool_kit==1.0 --hash=sha256:{'0' * 64}\nother==2.0\n"
    with pytest.raises(WheelhouseError, match="is not in the list of versions"):
        get_wheels(Wanted("stack", lock, allow_unverified=True), TARGET, Sources(), cache)


def test_wheels_for_another_python_are_not_taken(source: Source, cache: Path) -> None:
    wanted = Wanted("stack", hashed(source, TOOL, OTHER))
    get_wheels(wanted, TARGET, Sources(), cache)
    get_wheels(wanted, Target("3.12", "2.36", "x86_64"), Sources(), cache)
    assert len(source.calls[1][0]) == 2


def test_a_wheelhouse_without_a_readable_list_is_none(tmp_path: Path) -> None:
    assert read_wheelhouse(tmp_path / "none") is None
    assert read_wheelhouse(tmp_path) is None
    whole = {"size": 5, "unpacked": 9, "sha256": "0" * 64}
    good = {"wheels": {TOOL: whole}, "notices": []}
    (tmp_path / TOOL).write_text("wheel")
    (tmp_path / "wheels.json").write_text(json.dumps(good))
    assert read_wheelhouse(tmp_path) == Wheelhouse(tmp_path, {TOOL: Wheel(5, 9, "0" * 64)})
    for damaged in (
        [], None, {}, {"wheels": {}, "notices": []}, {"wheels": {TOOL: whole}},
        {"wheels": {TOOL: {"size": 5}}, "notices": []}, {"wheels": {TOOL: []}, "notices": []},
        {"wheels": {TOOL: {**whole, "more": 1}}, "notices": []},
        {"wheels": [TOOL], "notices": []}, {"wheels": {TOOL: whole}, "notices": None},
    ):  # fmt: skip
        (tmp_path / "wheels.json").write_text(json.dumps(damaged))
        assert read_wheelhouse(tmp_path) is None, damaged
    for text in ("", "{", json.dumps(good)[:-5]):
        (tmp_path / "wheels.json").write_text(text)
        assert read_wheelhouse(tmp_path) is None, text


def test_a_host_needs_the_wheels_and_what_is_made_of_them() -> None:
    house = Wheelhouse(Path(), {"a": Wheel(5, 20, ""), "b": Wheel(7, 30, "")})
    assert house.host_bytes == 62 + SPARE_BYTES
    assert Wanted("stack", SIZES.format(100, 400)).host_bytes == 500 + SPARE_BYTES
    assert WANTED.host_bytes == SPARE_BYTES


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_dir() == Path("/cache/ftcluster/wheels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ops")
    assert cache_dir() == Path("/home/ops/.cache/ftcluster/wheels")
