"""A site's own Python is checked before root executes any part of it."""

import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.given_python import given_python
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import RefusedPath

STRANGER = pwd.getpwnam("nobody")
LIBRARY = "lib/python3.11"


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a Python's program and library in a folder that every account can reach."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    for name in (".", "bin", f"{LIBRARY}/encodings"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(0o755)
    for name in ("bin/python3.11", f"{LIBRARY}/os.py", f"{LIBRARY}/encodings/ascii.py"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    (folder / LIBRARY / "gone.py").symlink_to("nowhere")
    yield folder
    shutil.rmtree(folder)


def version(path: object, answer: str = "CPython 3.11.7 \n", has_root: bool = True) -> str:
    """Return the version if the program prints this."""
    found: str = given_python(str(path), has_root, lambda _: (0, answer, ""), "ml")
    return found


def refused(path: object, **more: str) -> tuple[str, str]:
    """Return the refused path and the reason; no code in it may have been executed."""
    with pytest.raises(RefusedPath) as caught:
        version(path, **more)
    assert caught.value.hint
    return caught.value.filename, caught.value.what


def test_a_python_of_roots_is_taken_under_any_name(brought: Path) -> None:
    assert version(brought / "bin/python3.11") == "3.11.7"
    (brought / "python").symlink_to("bin/python3.11")
    assert version(brought / "python") == "3.11.7"


def test_a_real_one_is_taken() -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert given_python(sys.executable, False, run) == platform.python_version()
    with pytest.raises(RefusedPath, match="does not run: "):
        given_python("/bin/false", False, run)


def test_what_is_no_program_is_refused(brought: Path) -> None:
    program = brought / "bin/python3.11"
    assert refused("bin/python3.11") == ("bin/python3.11", "is not an absolute path")
    assert refused(brought / "bin") == (str(brought / "bin"), "is not an executable file")
    missing = brought / "bin/python3.12"
    assert refused(missing) == (str(missing), "cannot be inspected: No such file or directory")
    program.chmod(0o644)
    assert refused(program) == (str(program), "is not an executable file")
    shutil.rmtree(brought / "lib")
    program.chmod(0o755)
    assert refused(program) == (str(program), f"has no lib/python3.* in {brought}")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("PyPy 3.11.7 \n", "is PyPy, but the wheels are built for CPython"),
        ("CPython 3.11.7 bz2,ssl\n",
         "lacks the modules bz2, ssl, which the stacks import"),
        ("3.11\n", "does not run: 3.11"),
    ],
)  # fmt: skip
def test_what_the_wheels_do_not_run_with_is_refused(brought: Path, answer: str, what: str) -> None:
    program = brought / "bin/python3.11"
    assert refused(program, answer=answer) == (str(program), what)


PARTS = ["", "bin", "bin/python3.11", "lib", LIBRARY, f"{LIBRARY}/os.py",
         f"{LIBRARY}/encodings", f"{LIBRARY}/encodings/ascii.py"]  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_what_others_may_write_to_is_refused(brought: Path, name: str) -> None:
    part = brought / name
    part.chmod(part.stat().st_mode | 0o002)
    assert refused(brought / "bin/python3.11")[0] == str(part)
    # only this user would execute it
    assert version(brought / "bin/python3.11", has_root=False) == "3.11.7"


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", [*PARTS, "python", f"{LIBRARY}/site.py"])
def test_what_is_another_users_is_refused(brought: Path, name: str, tmp_path: Path) -> None:
    (brought / "python").symlink_to("bin/python3.11")
    outside = tmp_path / "site.py"
    outside.write_text("")
    (brought / LIBRARY / "site.py").symlink_to(outside)
    part = outside if name.endswith("site.py") else brought / name
    os.lchown(part, STRANGER.pw_uid, -1)
    assert STRANGER.pw_name in refused(brought / "python")[1]


@pytest.mark.parametrize("name", ["", "bin", "bin/python3.11", LIBRARY])
def test_what_the_account_cannot_use_is_refused(brought: Path, name: str) -> None:
    (brought / name).chmod(0o700)
    place, what = refused(brought / "bin/python3.11")
    assert (place, what) == (str(brought / name), "the training account ml may not read it")
    assert given_python(
        str(brought / "bin/python3.11"), True, lambda _: (0, "CPython 3.11.7 \n", "")
    )
