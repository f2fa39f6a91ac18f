"""Ansible connects only to hosts whose keys are known."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cluster.control import HEAD, NAMES, OTHER, Control
from tests.programs import FTCLUSTER

OTHERS_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIMKoFpkv8fSzqEBc4bSVDkAYtgmzAZgZ1v1yyQ4YpA7W"


class Site:
    """An inventory of the hosts, and the file of known keys that it names."""

    def __init__(self, bare: Control, folder: Path) -> None:
        self.bare, self.known = bare, folder / "known_hosts"
        made = Path(bare.inventory("keys.ini", NAMES))
        words = [word for word in made.read_text().split() if "KnownHostsFile=" in word]
        self.all_keys = Path(words[0].partition("=")[2]).read_text()
        text = made.read_text().replace(words[0], f"UserKnownHostsFile={self.known}")
        self.inventory = folder / "keys.ini"
        self.inventory.write_text(text)
        self.folder, self.calls = folder, 0

    @property
    def env(self) -> dict[str, str]:
        """Return an environment without open connections, which would skip the check of keys."""
        self.calls += 1
        return {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / f"cp{self.calls}")}

    def keys_of(self, *hosts: str) -> str:
        lines = self.all_keys.splitlines(keepends=True)
        return "".join(line for line in lines if line.split(",")[0] in hosts)

    def setup(self, *options: str) -> "subprocess.CompletedProcess[str]":
        argv = ("setup", str(self.inventory), "--tags", "preflight", *options)
        return self.bare.run(*argv, **self.env)

    def on_a_terminal(self, answer: str) -> tuple[int, str]:
        """Run the command on a terminal with answers; return its exit code and its output."""
        argv = [str(FTCLUSTER), "setup", str(self.inventory), "--tags", "preflight", "-v"]
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            self.bare.bed.run_argv(argv), stdin=theirs, stdout=theirs, stderr=theirs,
            env=os.environ | self.bare.env | self.env, cwd=self.bare.folder,
        ) as process:  # fmt: skip
            os.close(theirs)
            said, answered = "", False
            try:
                while more := os.read(ours, 4096):
                    said += more.decode(errors="replace")
                    if "[y/N]" in said and not answered:
                        os.write(ours, f"{answer}\n".encode())
                        answered = True
            except OSError:  # EIO: the process has ended
                pass
        os.close(ours)
        return process.returncode, said


@pytest.fixture
def site(bare: Control, tmp_path: Path) -> Site:
    return Site(bare, tmp_path)


def test_hosts_that_are_not_known_are_refused_until_the_user_accepts_them(site: Site) -> None:
    site.known.write_text(site.keys_of(HEAD))
    refused = site.setup()
    assert refused.returncode == 1
    for host in NAMES[1:]:
        assert f"  {host}: its host key is not known here" in refused.stderr
    assert f"  {HEAD}: its host key" not in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert "SHA256:" in refused.stderr
    assert site.known.read_text() == site.keys_of(HEAD)
    code, said = site.on_a_terminal("y")
    assert code == 0, said
    stored = site.known.read_text().removeprefix(site.keys_of(HEAD))
    assert len(stored.splitlines()) == 2
    site.known.write_text("")
    accepted = site.setup("--accept-new-host-keys", "--limit", HEAD)
    assert accepted.returncode == 0, accepted.stderr
    assert f"note: stored in {site.known}: {HEAD}: " in accepted.stderr
    assert len(site.known.read_text().splitlines()) == 1


def test_a_changed_key_is_refused_whatever_the_user_accepts(site: Site) -> None:
    wrong = f"{OTHER},{site.keys_of(OTHER).split(',')[1].split()[0]} ssh-ed25519 {OTHERS_KEY}\n"
    before = site.keys_of(HEAD) + wrong
    site.known.write_text(before)
    refused = site.setup("--accept-new-host-keys")
    assert refused.returncode == 1
    [line] = [one for one in refused.stderr.splitlines() if one.startswith(f"  {OTHER}: ")]
    assert f"{site.known}:2" in line
    assert "somebody may intercept the connection" in line
    assert site.known.read_text() == before  # the third host's key was not accepted either
