import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import download
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Pip,
    Sources,
    Target,
    needs,
    pip_command,
    pip_environment,
    unpacked_bytes,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import Pin
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.pip_words import (
    complaint,
    reason,
    redacted,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    WheelhouseError,
    get_wheels,
)

from tests.unit.wheels import Indexes, serve, write_wheel

TARGET = Target("3.11", "2.36", "x86_64")
LOCKS = Path(__file__).parents[3] / "roles/torch_stack/files"
CP311 = "cp311-cp311-{}_x86_64"
NVIDIA = 'nvidia-x==1.0 ; platform_system == "Linux"'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the folders of the indexes `main` and `cpu`; the torch of `cpu` is without CUDA."""
    root = tmp_path_factory.mktemp("indexes")
    main = root / "main"
    write_wheel(main, "tool_kit", "1.0", "dependency>=1")
    write_wheel(main, "tool_kit", "1.1")
    for version in ("1.0", "1.2"):
        write_wheel(main, "dependency", version)
    for name in ("a", "b", "c", "d"):
        write_wheel(main, name, "1.0")
    write_wheel(main, "build", "2.0")
    write_wheel(main, "build", "2.0+cpu", tag=CP311.format("linux"))
    write_wheel(main, "yanked", "1.0")
    for tag in (
        "cp312-cp312-manylinux_2_17_x86_64",
        "cp311-cp311-manylinux_2_17_aarch64",
        *map(CP311.format, ("manylinux_2_37", "musllinux_1_2", "manylinux_2_28")),
    ):
        write_wheel(main, "native", "1.0", tag=tag)
    write_wheel(main, "torch", "1.0", NVIDIA)
    write_wheel(main, "nvidia_x", "1.0")
    write_wheel(root / "cpu", "torch", "1.0+cpu", tag=CP311.format("linux"))
    write_wheel(root / "evil", "torch", "2.13.0+cpu", tag=CP311.format("manylinux_2_28"))
    write_wheel(root / "cpu", "choosy", "1.0", "dependency<1.2")
    cut = write_wheel(main, "cut", "1.0")
    cut.write_bytes(cut.read_bytes()[:300])
    return root


@pytest.fixture(scope="module")
def indexes(root: Path) -> Iterator[Indexes]:
    with serve(root) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def own_pip(indexes: Indexes) -> Iterator[None]:
    """Configure pip to use only the index `main`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("PIP_") or name.lower().endswith("_proxy"):
                patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_CACHE_DIR", "1")
        patch.setenv("PIP_RETRIES", "0")
        patch.setenv("PIP_INDEX_URL", indexes.url("main"))
        # the check for pip takes as long as a download
        patch.setattr(download, "pip_command", lambda: [sys.executable, "-I", "-m", "pip"])
        yield


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    """Return the address of an index that does not respond."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/simple"


def pins(*words: str) -> list[Pin]:
    return [Pin(*word.split("=="), frozenset()) for word in words]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the real pip


def test_pinned_versions_that_fit_the_host_are_downloaded(tmp_path: Path) -> None:
    wanted = pins("tool-kit==1.0", "build==2.0", "native==1.0", "yanked==1.0")
    assert Pip(TARGET, Sources(), tmp_path).download(wanted) == {}
    assert names(tmp_path) == [
        "build-2.0+cpu-cp311-cp311-linux_x86_64.whl",  # preferred to a build with CUDA
        # for the host, not for the control node
        "native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "tool_kit-1.0-py3-none-any.whl",
        "yanked-1.0-py3-none-any.whl",
    ]


def test_with_dependencies_pip_chooses_their_versions(tmp_path: Path) -> None:
    Pip(TARGET, Sources(), tmp_path).download(pins("tool-kit==1.0"), with_dependencies=True)
    assert names(tmp_path) == ["dependency-1.2-py3-none-any.whl", "tool_kit-1.0-py3-none-any.whl"]


def test_with_dependencies_packages_of_other_indexes_have_their_say(
    tmp_path: Path, indexes: Indexes
) -> None:
    sources = Sources(indexes={"choosy": indexes.url("cpu")})
    wanted = pins("tool-kit==1.0", "choosy==1.0")
    assert Pip(TARGET, sources, tmp_path).download(wanted, with_dependencies=True) == {}
    assert "dependency-1.0-py3-none-any.whl" in names(tmp_path)
    assert len(names(tmp_path)) == 3


@pytest.mark.parametrize(
    ("index", "words"),
    [("plain", "Content-Type: text/plain"), ("500", "too many 500 error responses")],
)
def test_an_index_that_is_of_no_use_is_named_with_its_reason(
    index: str, words: str, tmp_path: Path, indexes: Indexes
) -> None:
    url = indexes.url(index)
    with pytest.raises(DownloadError) as caught:
        Pip(TARGET, Sources(url), tmp_path).download(pins("tool-kit==1.0"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("the control node cannot download the wheels for Python 3.11 and gl")
    assert any(f"{url}/tool-kit/" in line and words in line for line in lines)
    assert "No matching distribution found for tool-kit==1.0" in lines[-2]
    assert all(word in lines[-1] for word in ("pip config list", "torch_stack_index_url", "bundle"))
    assert names(tmp_path) == []


def test_of_a_missing_package_only_its_own_indexes_are_told(
    tmp_path: Path, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this index does not have the tool-kit either
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", indexes.url("cpu"))
    with pytest.raises(DownloadError) as caught:
        Pip(TARGET, Sources(), tmp_path).download(pins("tool-kit==1.0", "missing==3.0"))
    assert f"{indexes.url('main')}/missing/: 404" in str(caught.value)
    assert f"{indexes.url('cpu')}/missing/: 404" in str(caught.value)
    assert "tool-kit" not in str(caught.value)
    assert "No matching distribution found for missing==3.0" in str(caught.value)


def test_a_wheel_that_was_cut_off_is_named(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"cut-1\.0-py3-none-any\.whl"):
        Pip(TARGET, Sources(), tmp_path).download(pins("cut==1.0"))


def test_an_index_of_its_own_that_does_not_give_a_package_is_told_with_its_reason(
    tmp_path: Path, indexes: Indexes, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PREFERRED_SECONDS", 1)
    own = {
        "a": closed,
        "b": indexes.url("404"),
        "c": indexes.url("empty"),
        "d": indexes.url("silent"),
    }
    wanted = pins(*(f"{name}==1.0" for name in own))
    refused = Pip(TARGET, Sources(indexes=own), tmp_path).download(wanted)
    assert names(tmp_path) == [f"{name}-1.0-py3-none-any.whl" for name in own]
    assert refused.keys() == own.keys()
    for name, words in {
        "a": "Connection refused",
        "b": "404 Client Error",
        "c": r"\(from versions: none\)",
        # messages of newer and older versions of pip
        "d": "didn't respond within 1|Read timed out",
    }.items():
        assert refused[name].startswith(f"{own[name]}: ")
        assert re.search(words, refused[name])
        assert "\n" not in refused[name]


def test_an_index_of_its_own_goes_before_the_others(
    tmp_path: Path, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "asked", [])
    sources = Sources(indexes={"torch": indexes.url("cpu"), "a": indexes.url("cpu")})
    refused = Pip(TARGET, sources, tmp_path).download(pins("torch==1.0"))
    assert refused == {}
    assert names(tmp_path) == ["torch-1.0+cpu-cp311-cp311-linux_x86_64.whl"]
    assert set(indexes.asked) == {"cpu/torch"}


def test_an_index_of_its_own_may_be_a_folder(tmp_path: Path, root: Path, closed: str) -> None:
    sources = Sources(closed, indexes={"torch": str(root / "cpu")})
    assert Pip(TARGET, sources, tmp_path).download(pins("torch==1.0")) == {}
    assert names(tmp_path) == ["torch-1.0+cpu-cp311-cp311-linux_x86_64.whl"]


def test_where_no_source_has_it_both_reasons_are_told(
    tmp_path: Path, indexes: Indexes, closed: str
) -> None:
    url = indexes.url("404")
    sources = Sources(closed, indexes={"a": url.replace("://", "://me:s3cret@")})
    with pytest.raises(DownloadError) as caught:
        Pip(TARGET, sources, tmp_path).download(pins("a==1.0"))
    said = rf"{closed}/a/: connection error: .*\[Errno 111\] Connection refused"
    # versions of pip differ in the text between these parts
    assert re.search(said, str(caught.value))
    assert f"a: {url.replace('://', '://****@')}: 404 Client Error" in str(caught.value)
    assert "s3cret" not in str(caught.value)


# --- a whole wheelhouse with the real pip


def test_a_torch_that_the_real_lock_does_not_have_is_refused_by_its_name(
    tmp_path: Path, indexes: Indexes
) -> None:
    lines = (LOCKS / "native.txt").read_text().replace("\\\n", " ").splitlines()
    (lock,) = (line for line in lines if line.startswith("torch=="))
    sources = Sources(indexes={"torch": indexes.url("evil")})
    with pytest.raises(WheelhouseError) as caught:
        get_wheels(Wanted("native", lock), TARGET, sources, tmp_path)
    assert "the SHA-256 of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, " in str(
        caught.value
    )
    assert "is not in the list of versions" in str(caught.value)
    assert [name for name in names(tmp_path) if not name.endswith(".lock")] == []


# --- what needs no pip


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
    # without sources, pip's own configuration applies
    assert Sources().pip_options() == []
    assert Sources("https://mirror/simple", ("/a", "/b")).pip_options() == [
        "--index-url=https://mirror/simple", "--find-links=/a", "--find-links=/b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "runs"),
    [
        ("native-1b2c-cp311-glibc2.36-x86_64", True),
        ("native-1b2c-cp311-glibc2.9-x86_64", True),
        ("native-1b2c-cp311-glibc2.37-x86_64", False),
        ("native-1b2c-cp311-glibc2.36-aarch64", False),
        ("native-1b2c-cp312-glibc2.36-x86_64", False),
        (".native-1b2c-cp311-glibc2.36-x86_64.x", False),
    ],
)
def test_whose_wheels_run_on_a_host(folder: str, runs: bool) -> None:
    assert TARGET.runs_wheels_of(folder) == runs


@pytest.mark.parametrize(
    ("requirement", "needed"),
    [
        (NVIDIA, True),
        ("Nvidia.X==1.0", True),
        ('nvidia-x==1.0 ; platform_system == "Darwin"', False),
        ('nvidia-x==1.0 ; extra == "cuda"', False),
        ('nvidia-x==1.0 ; python_version < "3.11"', False),
        ("nvidia-y==1.0", False),
        ("nvidia-x is not a requirement", False),
        ('nvidia-x ; os_name ~= "posix"', False),
    ],
)
def test_what_a_wheel_asks_for_on_the_host(tmp_path: Path, requirement: str, needed: bool) -> None:
    write_wheel(tmp_path, "torch", "1.0", "other", requirement)
    assert needs(tmp_path, {"nvidia-x"}, "3.11") == ({"nvidia-x"} if needed else set())


def test_what_a_wheel_brings_along_asks_for_nothing(tmp_path: Path) -> None:
    write_wheel(tmp_path, "setuptools", "1.0", brings="Name: inner\nRequires-Dist: nvidia-x\n")
    assert needs(tmp_path, {"nvidia-x"}, "3.11") == set()


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, "torch", "1.0", "other " * 50)
    whole = path.read_bytes()
    begin = whole.index(b"METADATA") + len("METADATA")
    content = whole[:begin] + b"\xff" * 20 + whole[begin + 20 :]
    for damaged in (whole[: len(whole) // 2], b"<html>", content):
        path.write_bytes(damaged)
        with pytest.raises(DownloadError, match=r"^torch-1\.0-py3-none-any\.whl is not a wheel: "):
            needs(tmp_path, {"nvidia-x"}, "3.11")
    path.unlink()
    empty = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path)
    Path(empty).rename(tmp_path / "a-1.0-py3-none-any.whl")
    with pytest.raises(DownloadError, match="is not a wheel: it contains no metadata"):
        needs(tmp_path, {"nvidia-x"}, "3.11")


def test_the_size_of_what_is_in_a_wheel(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, "tool", "1.0")
    assert unpacked_bytes(path) > path.stat().st_size  # the wheel is compressed
    path.write_text("wheel")
    with pytest.raises(DownloadError, match=r"^tool-1\.0-.+ is not a wheel"):
        unpacked_bytes(path)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["ERROR: No x", "Could not fetch URL https://i/x/: 403 Client Error"], "403 Client Error"),
        (["WARNING: Retrying (Retry(total=4)) after: reset", "ERROR: x"],
         "Retrying (Retry(total=4)) after: reset"),
        (["DEPRECATION: old", "ERROR: Could not find a version"], "Could not find a version"),
        (["something else", "Killed"], "Killed"),
        ([], "pip failed without output"),
    ],
)  # fmt: skip
def test_the_most_telling_line(lines: list[str], expected: str) -> None:
    assert reason(lines) == expected


def test_pips_complaint_is_its_last_lines_without_those_that_explain_nothing() -> None:
    lines = [
        *(f"line {n}" for n in range(20)),
        "WARNING: You are using an old pip",
        "WARNING: Retrying (Retry(total=1)) after x",
        "WARNING: Retrying (Retry(total=0)) after x",
        "line 19",
    ]
    found = complaint(lines, TARGET, {}, {"a"}, {})
    assert "line 13\n" in found
    assert "line 12" not in found
    assert "total=0" in found
    assert "total=1" not in found
    assert "old pip" not in found
    assert found.count("line 19") == 1


def test_a_password_in_an_indexs_address_is_not_shown() -> None:
    assert redacted("https://me:secret@mirror/simple") == "https://****@mirror/simple"
    assert redacted("https://mirror/a@b") == "https://mirror/a@b"
    assert redacted("/folder/a@b") == "/folder/a@b"


def test_a_pip_of_ansibles_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_command() == [sys.executable, "-I", "-m", "pip"]
    # otherwise the system's pip is used
    good = sys.executable
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(shutil, "which", lambda _name: good)
    assert pip_command() == [good, "-I", "-m", "pip"]
    # or the error says what to install
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(DownloadError, match="install python3-pip"):
        pip_command()


def test_pip_and_what_it_builds_get_no_tokens() -> None:
    """Variables for tokens as named in the documentation of their services."""
    kept = {
        "PIP_INDEX_URL": "https://me:pw@mirror.test/simple", "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "*", "SSL_CERT_FILE": "/c", "HOME": "/h", "PATH": "/usr/bin", "LC_ALL": "C",
        "CC": "gcc", "CFLAGS": "-O2", "LD_LIBRARY_PATH": "/opt/lib",
    }  # fmt: skip
    tokens = {
        "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY",
        "MLFLOW_TRACKING_PASSWORD", "ANSIBLE_BECOME_PASSWORD", "SSH_AUTH_SOCK", "TWINE_PASSWORD",
        "UV_PUBLISH_TOKEN", "AZURE_CLIENT_SECRET", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD",
    }  # fmt: skip
    assert pip_environment(kept | dict.fromkeys(tokens, "s3cret")) == kept
