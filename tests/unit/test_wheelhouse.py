import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from plugins.plugin_utils import wheelhouse
from plugins.plugin_utils.wheelhouse import (
    Target,
    WheelhouseError,
    allowed_hashes,
    check,
    get_wheels,
    normal,
    read_wheelhouse,
    requirements,
)

TARGET = Target("3.11", "2.36", "x86_64")
LIST = "# made by a tool\nTool_Kit==1.0\nother==2.0+cpu\n"
TOOL, OTHER = "tool_kit-1.0-py3-none-any.whl", "other-2.0+cpu-cp311-cp311-linux_x86_64.whl"
# What stands in for pip: writes each file that a list beside it names, then does as it says.
PIP = """
import pathlib, sys
arguments = sys.argv[1:]
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(" ".join(arguments) + "\\n")
folder = pathlib.Path(arguments[arguments.index("--dest") + 1])
for name in (here / "gives").read_text().split():
    (folder / name).write_text("wheel")
sys.stderr.write((here / "says").read_text())
sys.exit(1 if (here / "says").read_text() else 0)
"""


class Pip:
    """A pip that gives the files that it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pip.py").write_text(PIP)
        self.gives(TOOL, OTHER)
        self.says("")

    def gives(self, *names: str) -> None:
        (self.folder / "gives").write_text(" ".join(names))

    def says(self, text: str) -> None:
        (self.folder / "says").write_text(text)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    folder = tmp_path / "pip"
    folder.mkdir()
    monkeypatch.setattr(wheelhouse, "pip", lambda: [sys.executable, str(folder / "pip.py")])
    return Pip(folder)


def write_list(folder: Path, text: str = LIST) -> Path:
    (folder / "stack.txt").write_text(text)
    return folder / "stack.txt"


def left(cache: Path) -> list[str]:
    """What is in the cache besides locks."""
    return [path.name for path in cache.iterdir() if not path.name.endswith(".lock")]


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("wheel")
    return folder


def test_names_are_compared_as_indexes_do() -> None:
    assert {normal(name) for name in ("Tool_Kit", "tool-kit", "tool.kit", "TOOL-_.kit")} == {
        "tool-kit"
    }


def test_a_list_of_versions_with_comments_and_hashes() -> None:
    text = (
        "# by a tool\n\nTool_Kit==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "    # via other\nother==2.0+cpu  # the smaller one\n"
    )
    assert requirements(text) == {"tool-kit": "1.0", "other": "2.0+cpu"}


@pytest.mark.parametrize(
    "line",
    ["other>=2", "other", "git+https://example.org/x", "a[b]==1", "a==1;python_version<'3'", "==1"],
)
def test_a_line_that_is_no_version_is_named(line: str) -> None:
    with pytest.raises(WheelhouseError, match="is not of the form name==version") as caught:
        requirements(f"tool==1.0\n{line}\n")
    assert f"'{line}'" in str(caught.value)


def test_hashes_of_a_list() -> None:
    assert allowed_hashes(LIST) == set()
    digests = ("a" * 64, "0" * 64)
    lines = " ".join(f"--hash=sha256:{digest}" for digest in digests)
    assert allowed_hashes(f"tool==1.0 {lines} --hash=sha256:short") == set(digests)


def test_pip_chooses_as_it_would_on_the_host() -> None:
    options = TARGET.pip_options()
    assert "--python-version=3.11" in options
    assert "--only-binary=:all:" in options
    platforms = [option for option in options if option.startswith("--platform=")]
    assert platforms[0] == "--platform=manylinux_2_36_x86_64"
    assert "--platform=manylinux_2_5_x86_64" in platforms
    assert "--platform=manylinux_2_37_x86_64" not in platforms
    assert platforms[-1] == "--platform=linux_x86_64"
    assert TARGET.tag == "cp311-glibc2.36-x86_64"


def test_size_and_hash_of_every_wheel(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert check(folder_with(tmp_path, TOOL, OTHER), LIST) == {
        name: {"size": 5, "sha256": digest} for name in (OTHER, TOOL)
    }
    check(tmp_path, f"{LIST}# --hash=sha256:{digest}\n")


def test_a_local_version_is_a_build_of_the_same_version(tmp_path: Path) -> None:
    check(folder_with(tmp_path, OTHER), "other==2.0\n")


def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    with pytest.raises(WheelhouseError, match=r"pip did not download other$"):
        check(folder_with(tmp_path, TOOL), LIST)


@pytest.mark.parametrize("name", ["extra-1.0-py3-none-any.whl", "tool_kit-1.1-py3-none-any.whl"])
def test_a_wheel_that_the_list_does_not_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(WheelhouseError, match=f"downloaded {name}, which the list does not name"):
        check(folder_with(tmp_path, name, OTHER), LIST)


@pytest.mark.parametrize("name", ["README", "other"])
def test_a_file_that_is_not_named_as_a_wheel(tmp_path: Path, name: str) -> None:
    with pytest.raises(WheelhouseError, match=f"downloaded {name}, which the list does not name"):
        check(folder_with(tmp_path, name, TOOL), LIST)


def test_a_wheel_with_a_hash_that_is_not_allowed(tmp_path: Path) -> None:
    text = f"tool_kit==1.0 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(WheelhouseError, match="which the list of versions does not allow"):
        check(folder_with(tmp_path, TOOL), text)


def test_wheels_are_downloaded_once(tmp_path: Path, pip: Pip) -> None:
    file, cache = write_list(tmp_path), tmp_path / "cache"
    house = get_wheels(file, TARGET, cache)
    assert [path.name for path in house.files] == [OTHER, TOOL]
    assert all(path.is_file() for path in house.files)
    assert house.sha256[TOOL] == hashlib.sha256(b"wheel").hexdigest()
    assert get_wheels(file, TARGET, cache) == house
    assert len(pip.calls) == 1
    assert f"--requirement {file}" in pip.calls[0]
    assert left(cache) == [house.folder.name]


def test_another_list_or_another_host_has_wheels_of_its_own(tmp_path: Path, pip: Pip) -> None:
    cache = tmp_path / "cache"
    get_wheels(write_list(tmp_path), TARGET, cache)
    get_wheels(write_list(tmp_path), Target("3.12", "2.36", "x86_64"), cache)
    get_wheels(write_list(tmp_path, f"{LIST}# changed\n"), TARGET, cache)
    assert len(pip.calls) == len(left(cache)) == 3


def test_a_download_that_is_broken_off_leaves_nothing(tmp_path: Path, pip: Pip) -> None:
    file, cache = write_list(tmp_path), tmp_path / "cache"
    pip.gives(TOOL)
    pip.says("WARNING: Retrying\nERROR: No matching distribution found for other==2.0\n\n")
    with pytest.raises(WheelhouseError) as caught:
        get_wheels(file, TARGET, cache)
    assert str(caught.value) == (
        "the control node cannot download the wheels for Python 3.11 and glibc 2.36: "
        "ERROR: No matching distribution found for other==2.0\n"
        "see that pip on the control node reaches a package index (pip config list)"
    )
    assert left(cache) == []
    pip.gives(TOOL, OTHER)
    pip.says("")
    assert len(get_wheels(file, TARGET, cache).files) == 2


def test_a_download_that_is_not_as_the_list_says_leaves_nothing(tmp_path: Path, pip: Pip) -> None:
    pip.gives(TOOL)
    with pytest.raises(WheelhouseError, match="pip did not download other"):
        get_wheels(write_list(tmp_path), TARGET, tmp_path / "cache")
    assert left(tmp_path / "cache") == []


def test_a_full_disk_names_the_option_that_helps(
    tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path, _text: str) -> None:
        raise OSError(28, "No space left on device", "/cache/x")

    monkeypatch.setattr(wheelhouse, "check", full)
    with pytest.raises(WheelhouseError, match="/cache/x: No space left on device; set virtualenv_"):
        get_wheels(write_list(tmp_path), TARGET, tmp_path / "cache")
    assert left(tmp_path / "cache") == []
    assert len(pip.calls) == 1


def test_a_cache_that_cannot_be_made_names_the_option_that_helps(tmp_path: Path, pip: Pip) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for cache in (taken, taken / "below"):
        with pytest.raises(
            WheelhouseError, match=f"^{cache}: .+; set virtualenv_cache to a folder"
        ):
            get_wheels(write_list(tmp_path), TARGET, cache)
    assert taken.read_text() == "a file"
    assert pip.calls == []


def test_a_cache_that_cannot_be_written_names_the_option_that_helps(
    tmp_path: Path, pip: Pip
) -> None:
    cache = Path("/proc")  # not even root can make a file there
    with pytest.raises(
        WheelhouseError, match=r"^/proc/\.stack-.+; set virtualenv_cache to a folder"
    ):
        get_wheels(write_list(tmp_path), TARGET, cache)
    assert pip.calls == []


def test_a_wheelhouse_with_a_cut_or_missing_file_is_downloaded_again(
    tmp_path: Path, pip: Pip
) -> None:
    file, cache = write_list(tmp_path), tmp_path / "cache"
    house = get_wheels(file, TARGET, cache)
    house.files[0].write_text("whe")
    assert read_wheelhouse(house.folder) is None
    assert get_wheels(file, TARGET, cache).files[0].read_text() == "wheel"
    house.files[1].unlink()
    assert get_wheels(file, TARGET, cache).files[1].is_file()
    assert len(pip.calls) == 3


def test_a_wheelhouse_without_a_readable_list_is_none(tmp_path: Path) -> None:
    assert read_wheelhouse(tmp_path / "none") is None
    assert read_wheelhouse(tmp_path) is None
    for text in ("", "{", "[]", "null", json.dumps({TOOL: {"size": 5}}), json.dumps({TOOL: []})):
        (tmp_path / "wheels.json").write_text(text)
        (tmp_path / TOOL).write_text("wheel")
        assert read_wheelhouse(tmp_path) is None


def test_pips_complaint_is_its_last_lines() -> None:
    found = wheelhouse.complaint("\n".join(f"line {n}" for n in range(20)), TARGET)
    assert "line 12\n" in found
    assert "line 11" not in found


def test_without_any_pip_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(WheelhouseError, match="install python3-pip"):
        wheelhouse.pip()
