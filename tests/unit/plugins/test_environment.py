import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.modules import environment
from ansible_collections.ftcluster.cluster.plugins.modules.environment import (
    check,
    digest_found,
    finish,
    is_whole,
    unpack_uv,
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Make a complete environment with one package."""
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (packages / "tool-1.0.dist-info").mkdir(parents=True)
    (packages / "tool.py").write_text("x = 1\n")
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "tool").write_text("#!\n")
    (packages / "tool-1.0.dist-info" / "RECORD").write_text(
        "tool.py,sha256=abc,6\n"
        "../../../bin/tool,sha256=def,3\n"
        '"tool-1.0.dist-info/RECORD",,\n'
    )  # fmt: skip
    finish(tmp_path / "env", "", "d1")
    return tmp_path / "env"


def wheels(folder: Path, **texts: str) -> dict[str, str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: sha256(text) for name, text in texts.items()}


def test_a_changed_wheel_is_named_with_both_hashes(tmp_path: Path) -> None:
    expected = wheels(tmp_path, a="one", b="two")
    check(tmp_path, expected)
    (tmp_path / "b").write_text("odd")
    with pytest.raises(ValueError, match="the SHA-256 of b is") as caught:
        check(tmp_path, expected)
    assert sha256("odd") in str(caught.value)
    assert sha256("two") in str(caught.value)
    assert "run setup again" in str(caught.value)


def test_missing_and_unexpected_wheels_are_named_together(tmp_path: Path) -> None:
    wheels(tmp_path, a="one", extra="two")
    with pytest.raises(
        ValueError, match=r"those that were sent \(extra, missing\); run setup again"
    ):
        check(tmp_path, {"a": sha256("one"), "missing": "0" * 64})


@pytest.mark.parametrize("name", ["lib/python3.11/site-packages/tool.py", "bin/tool"])
def test_a_missing_or_cut_file_is_noticed(made: Path, name: str) -> None:
    text = (made / name).read_text()
    (made / name).write_text("")
    assert not is_whole(made)
    (made / name).unlink()
    assert not is_whole(made)
    (made / name).write_text(text)
    assert is_whole(made)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 64,
        b"tool.py,sha256=abc,6\n" + b"\0" * 64,
        b"tool.py,sha256=abc,6\n../../../bin/to",
        b"tool.py,sha256=abc,6\n../../../bin/tool,sha2",
        b"tool.py,sha256=abc,6\n\xff\xfe,sha256=def,3\n",
        b"tool.py,sha256=abc,six\n",
    ],
    ids=["empty", "nothing but NUL", "NUL", "half a name", "half a line", "not UTF-8", "no size"],
)
def test_a_list_of_files_that_was_torn_is_noticed(made: Path, text: bytes) -> None:
    (made / "lib/python3.11/site-packages/tool-1.0.dist-info/RECORD").write_bytes(text)
    assert not is_whole(made)


def test_a_package_without_its_list_of_files_is_noticed(made: Path) -> None:
    packages = made / "lib/python3.11/site-packages"
    (packages / "other-2.0.dist-info").mkdir()
    assert not is_whole(made)
    (packages / "other-2.0.dist-info").rmdir()
    assert is_whole(made)
    # an environment without packages is not complete either
    shutil.rmtree(made / "lib/python3.11/site-packages/tool-1.0.dist-info")
    assert not is_whole(made)
    shutil.rmtree(made / "lib")
    assert not is_whole(made)
    assert not is_whole(made / "none")


def test_an_environment_whose_python_is_gone_is_not_whole(made: Path, tmp_path: Path) -> None:
    """An upgrade of the system removes the Python that the environment uses."""
    python = tmp_path / "python3.11"
    python.touch()
    (made / "bin/python").symlink_to(python)
    assert is_whole(made)
    python.unlink()
    assert not is_whole(made)


def test_the_digest_is_that_of_the_marker(made: Path) -> None:
    assert digest_found(made, "", False) == "d1"
    assert digest_found(made, "node", False) == ""
    assert digest_found(made / "bin" / "tool", "", False) == ""
    assert digest_found(made.parent / "none", "", False) == ""
    # an overlay has its own marker
    finish(made, "node", "d2")
    assert digest_found(made, "node", False) == "d2"
    assert digest_found(made, "", False) == "d1"
    assert not (made / ".complete.new").exists()
    # a marker without a boot id leads to a check
    (made / ".complete").write_text("d1\n")
    digest_found(made, "", False)
    assert (made / ".complete").read_text().split() == ["d1", boot_id()]


def test_files_are_looked_at_once_in_each_boot(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look(path: Path) -> bool:
        looks.append(path)
        return bool(is_whole(path))

    monkeypatch.setattr(environment, "is_whole", look)
    digest_found(made, "", False)
    assert looks == []
    monkeypatch.setattr(environment, "boot_id", lambda: "another boot")
    assert digest_found(made, "", True) == "d1"
    assert digest_found(made, "", False) == "d1"
    assert looks == [made, made]  # check mode does not store that it has checked
    assert digest_found(made, "", False) == "d1"
    assert looks == [made, made]


def test_an_environment_that_lost_files_with_the_power_is_made_anew(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made / "bin" / "tool").write_text("")
    assert digest_found(made, "", False) == "d1"
    monkeypatch.setattr(environment, "boot_id", lambda: "another boot")
    assert digest_found(made, "", False) == ""
    assert digest_found(made, "", False) == ""


def test_uv_comes_out_of_its_wheel_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "uvloop-1.0-py3-none-any.whl").touch()
    assert unpack_uv(tmp_path) is None
    with zipfile.ZipFile(tmp_path / "uv-0.9.0-py3-none-linux_x86_64.whl", "w") as archive:
        archive.writestr("uv/__init__.py", "")
        archive.writestr("uv-0.9.0.data/scripts/uvx", "no")
        archive.writestr("uv-0.9.0.data/scripts/uv", "#!/bin/sh\n")
    program = unpack_uv(tmp_path)
    assert program == tmp_path / "uv"
    assert program.read_text() == "#!/bin/sh\n"
    assert program.stat().st_mode & 0o777 == 0o755


UV = """#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
packages=$2/lib/python3.11/site-packages
mkdir -p "$packages/tool-1.0.dist-info"
printf '"tool-1.0.dist-info/RECORD",,\\n' > "$packages/tool-1.0.dist-info/RECORD"
"""


@pytest.mark.parametrize("works", [True, False])
def test_packages_for_another_environment_appear_whole_or_not_at_all(
    tmp_path: Path, run_module: Callable[..., dict[str, Any]], works: bool
) -> None:
    uv, staging = tmp_path / "stack/bin/uv", tmp_path / "layers/one.staging-0f"
    uv.parent.mkdir(parents=True)
    staging.mkdir(parents=True)
    uv.write_text(UV if works else f"{UV}echo no space >&2; exit 1\n")
    uv.chmod(0o755)
    path = tmp_path / "layers/one"
    path.mkdir()
    (path / "torn").touch()  # a file that was incomplete when the power failed
    found = run_module(
        environment.main, path=str(path), base=str(tmp_path / "stack"),
        from_action={
            "digest": "d1", "staging": str(staging), "step": "verify and install",
            "sha256": wheels(staging, **{"tool-1.0-py3-none-any.whl": "one"}),
        },
    )  # fmt: skip
    if works:
        assert found["changed"]
        assert digest_found(path, "", False) == "d1"
        assert sorted(one.name for one in path.iterdir()) == [".complete", "lib"]
    else:
        assert "no space" in found["msg"]
        assert digest_found(path, "", False) == ""
    assert not staging.exists()
    assert list((tmp_path / "stack").iterdir()) == [uv.parent]
