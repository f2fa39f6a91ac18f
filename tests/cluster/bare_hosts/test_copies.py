"""Folders that several control nodes copy to a host at once, or break off copying."""

import hashlib
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from ftcluster.ansible.processes import descendants
from tests.cluster.control import HEAD, Control
from tests.programs import CONTROL, PATIENCE_SECONDS, wait_for

FOLDER = "/opt/copies"
PLAY = f"""
- hosts: {HEAD}
  gather_facts: false
  become: true
  tasks:
    - ftcluster.cluster.push: {{source: "{{{{ source }}}}", path: "{FOLDER}/{{{{ name }}}}"}}
"""
HASHES = "cd {} && find . -type f -exec sha256sum {{}} + | LC_ALL=C sort -k2"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files that go in pieces, and small ones, one of them with an odd name."""
    folder, numbers = tmp_path / "source", random.Random(0)
    (folder / "sub").mkdir(parents=True)
    for name, size in {"a": 90 << 20, "sub/b": 40 << 20, "sub/c d": 5, "it's": 0}.items():
        (folder / name).write_bytes(numbers.randbytes(size))
    return folder


def hashes(folder: Path) -> str:
    lines = {
        f"./{path.relative_to(folder)}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return "".join(f"{lines[name]}  {name}\n" for name in sorted(lines))


def names(bare: Control) -> list[str]:
    return bare.bed.exec_(HEAD, "sh", "-c", f"ls {FOLDER} || true").stdout.split()


@pytest.mark.long
def test_copies_at_once_and_broken_off(bare: Control, source: Path) -> None:
    inventory = bare.inventory("copies.ini", (HEAD,))
    (bare.folder / "copies.yml").write_text(PLAY)

    def push(name: str) -> "subprocess.Popen[str]":
        words = [CONTROL / "ansible-playbook", "-i", inventory, "copies.yml"]
        more = ["-e", f"source={source}", "-e", f"name={name}"]
        return subprocess.Popen(
            bare.bed.run_argv([*map(str, words), *more]), cwd=bare.folder,
            env=os.environ | bare.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    try:
        both = [push("data") for _ in range(2)]
        said = [one.communicate(timeout=300)[0] for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        there = bare.bed.exec_(HEAD, "sh", "-c", HASHES.format(f"{FOLDER}/data"), check=True)
        assert there.stdout == hashes(source)
        assert names(bare) == ["data"]

        killed = push("other")
        wait_for(
            lambda: any(name.startswith("other.new-") for name in names(bare)), PATIENCE_SECONDS
        )
        for pid in (killed.pid, *descendants(killed.pid)):  # workers have sessions of their own
            os.kill(pid, signal.SIGKILL)
        killed.wait()
        (left,) = (name for name in names(bare) if name != "data")
        assert re.fullmatch(r"other\.new-[0-9a-f]{8}", left)

        again = push("other")
        assert again.communicate(timeout=300)
        assert again.returncode == 0
        assert set(names(bare)) == {"data", "other", left}
        # as if that was seen 25 hours ago
        old = f"sed -i -E 's/, [0-9.]+\\]/, -90000.0]/' {FOLDER}/.unchanged.json"
        bare.bed.exec_(HEAD, "sh", "-c", old, check=True)
        last = push("third")
        assert last.communicate(timeout=300)
        assert sorted(names(bare)) == ["data", "other", "third"]
    finally:
        bare.bed.exec_(HEAD, "rm", "-rf", FOLDER)
