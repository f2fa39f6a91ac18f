import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import read_lock, sizes
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import read_stacks
from packaging.utils import canonicalize_name

from scripts.lock_stacks import CUDA_PREFIXES, FILES, applies, fits, lock_lines, minors
from tests.programs import ROOT

DOCUMENT = read_stacks(FILES)
LOCKED = [name for name, one in DOCUMENT["stacks"].items() if one["state"] != "documented"]
PYTHONS = ["3.10", "3.11", "3.12"]


def package(name: str, *tags: str, marker: str = "", version: str = "1.0") -> dict[str, Any]:
    """Return a package as in pylock.toml; the hash of each wheel begins with its number."""
    wheels = [
        {"url": f"https://files/{name}-{version}-{tag}.whl", "hashes": {"sha256": f"{n}" * 64}}
        for n, tag in enumerate(tags)
    ]
    found: dict[str, Any] = {"name": name, "version": version, "wheels": wheels}
    return {**found, "marker": marker} if marker else found


def test_minor_versions_from_the_first_to_the_last() -> None:
    assert minors("3.9", "3.11") == ["3.9", "3.10", "3.11"]
    assert minors("3.11", "3.11") == ["3.11"]


@pytest.mark.parametrize(
    ("marker", "python", "counts"),
    [
        (None, "3.11", True),
        ('sys_platform == "win32"', "3.11", False),
        ('platform_machine == "x86_64" and sys_platform == "linux"', "3.11", True),
        ('platform_machine == "aarch64"', "3.11", False),
        ('python_version < "3.11"', "3.11", False),
        ('python_version < "3.11"', "3.9", True),
        ('python_full_version >= "3.11.3"', "3.11", True),
        ('extra == "test"', "3.11", False),
    ],
)
def test_markers_are_about_the_hosts(marker: str | None, python: str, counts: bool) -> None:
    assert applies(marker, python) == counts


@pytest.mark.parametrize(
    ("tag", "good"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("cp311-cp311-linux_x86_64", True),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("py3-none-manylinux1_x86_64", True),
        ("cp39-cp39-manylinux_2_17_x86_64", False),
        ("cp313-cp313-manylinux_2_17_x86_64", False),
        ("cp311-cp311t-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_17_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-macosx_11_0_arm64", False),
        ("cp311-cp311-win_amd64", False),
        ("pp310-pypy310_pp73-manylinux_2_17_x86_64", False),
    ],
)
def test_wheels_for_the_hosts(tag: str, good: bool) -> None:
    assert fits(f"tool-1.0-{tag}.whl", PYTHONS) == good


@pytest.mark.parametrize("name", ["tool-1.0.tar.gz", "tool.whl", "tool-1.0.zip", ""])
def test_files_other_than_wheels_do_not_fit(name: str) -> None:
    assert not fits(name, PYTHONS)


def test_a_line_has_the_hashes_of_what_fits() -> None:
    tags = (
        "cp311-cp311-win_amd64", "cp311-cp311-manylinux_2_17_x86_64",
        "cp310-cp310-manylinux_2_17_x86_64", "cp39-cp39-manylinux_2_17_x86_64",
    )  # fmt: skip
    assert lock_lines([package("tool", *tags)], PYTHONS, {}) == [
        f"tool==1.0 \\\n    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{'2' * 64}"
    ]


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ('python_version >= "3.8"', ""),
        ('python_version < "3.11"', 'python_version <= "3.10"'),
        ('python_version >= "3.12"', 'python_version >= "3.12"'),
        ('python_version == "3.11"', 'python_version >= "3.11" and python_version <= "3.11"'),
    ],
)
def test_a_package_of_some_pythons_has_a_marker(marker: str, expected: str) -> None:
    (line,) = lock_lines([package("tool", "py3-none-any", marker=marker)], PYTHONS, {})
    assert line.split(" \\")[0] == "tool==1.0" + (f" ; {expected}" if expected else "")
    for python in PYTHONS:
        assert bool(read_lock(line, python)) == applies(marker, python)


def test_a_package_of_other_systems_is_left_out() -> None:
    other = package("tool", "py3-none-any", marker='sys_platform == "win32"')
    assert lock_lines([other, package("a", "py3-none-any")], PYTHONS, {})[0].startswith("a==")


def test_hashes_are_of_the_pythons_that_get_the_package() -> None:
    tags = ("cp310-cp310-linux_x86_64", "cp312-cp312-linux_x86_64")
    (line,) = lock_lines([package("tool", *tags, marker='python_version < "3.11"')], PYTHONS, {})
    assert "0" * 64 in line
    assert "1" * 64 not in line


def elsewhere(*names: str) -> dict[str, str]:
    """Return the hashes of another index's files; each begins with its letter."""
    return {name: "abcdef"[n] * 64 for n, name in enumerate(names)}


def test_packages_on_two_indexes_have_the_hashes_of_both() -> None:
    other = elsewhere(
        *(f"torch_x-1.0+cpu-cp{n}-cp{n}-manylinux_2_28_x86_64.whl" for n in (310, 311, 312)),
        "torch_x-1.1+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch_x-1.0+cpu-cp39-cp39-manylinux_2_28_x86_64.whl",
    )
    packages = [package("Torch_X", "py3-none-any"), package("tool", "py3-none-any")]
    both, usual = lock_lines(packages, PYTHONS, other)
    assert read_lock(both, "3.11")["torch-x"].hashes == {letter * 64 for letter in "0abc"}
    assert usual.count("--hash") == 1


def test_a_missing_hash_of_the_other_index_is_an_error() -> None:
    other = elsewhere("torch-1.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    with pytest.raises(SystemExit, match=r"no hash of torch 1\.0 for Python 3\.10 from its own in"):
        lock_lines([package("torch", "py3-none-any")], PYTHONS, other)


def test_a_local_version_is_read_from_its_address() -> None:
    one = package("tool", "py3-none-any", version="1.0")
    one["wheels"][0]["url"] = "https://files/tool-1.0%2Bcpu-py3-none-any.whl"
    assert "--hash" in lock_lines([one], PYTHONS, {})[0]


@pytest.mark.parametrize("tags", [(), ("cp311-cp311-win_amd64",)])
def test_a_package_without_a_wheel_is_an_error(tags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match=r"error: tool 1\.0 has no wheel for \['3.10', "):
        lock_lines([package("tool", *tags)], PYTHONS, {})


# --- the real locks


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_its_stacks_versions_for_each_python(name: str) -> None:
    stack = DOCUMENT["stacks"][name]
    text = (FILES / f"{name}.txt").read_text(encoding="utf-8")
    more = (FILES / f"{name}-cuda.txt").read_text(encoding="utf-8")
    bare = {canonicalize_name(package) for package in stack.get("unverified", ())}
    for python in minors(*stack["python"]):
        pins = read_lock(text, python)
        for package_name, version in stack["packages"].items():
            assert pins[canonicalize_name(package_name)].version == version
        assert {"uv", "pip", "setuptools", "safetensors"} <= pins.keys()
        assert {pin.name for pin in pins.values() if not pin.hashes} == bare
        theirs = {
            DOCUMENT["hashes"][file]
            for file in DOCUMENT["hashes"]
            if file.startswith(f"torch-{stack['packages']['torch']}+cpu-") and fits(file, [python])
        }
        assert len(theirs) == 1  # PyTorch's CPU index has one such file
        assert theirs < pins["torch"].hashes  # the package index has other files too
        cuda = read_lock(more, python)
        assert cuda
        assert not cuda.keys() & pins.keys()
        assert all(pin.name.startswith(CUDA_PREFIXES) and pin.hashes for pin in cuda.values())
        assert not any(pin.name.startswith(CUDA_PREFIXES) for pin in pins.values())
    for part in (text, more):
        download, unpacked = sizes(part)
        assert 10**8 < download < unpacked


def test_only_supported_stacks_have_a_lock() -> None:
    files = {path.stem.removesuffix("-cuda") for path in Path(FILES).glob("*.txt")}
    assert files == set(LOCKED)


def test_the_pages_state_the_size_of_the_downloads() -> None:
    stack = sizes(Path(FILES, "native.txt").read_text())[0] / 1e6
    [of_stack] = re.findall(r"about (\d+) MB for `native`", (ROOT / "docs/offline.md").read_text())
    assert abs(int(of_stack) - stack) < 0.05 * stack
    # the demo also downloads the control node's packages, 46 MB, and the model, 88 MB
    for page in ("README.md", "docs/quickstart.md"):
        [of_demo] = re.findall(r"downloads (\d+) MB", (ROOT / page).read_text())
        assert abs(int(of_demo) - (stack + 46 + 88)) < 0.05 * stack, page
