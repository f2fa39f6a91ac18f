import io
from pathlib import Path

import pytest
from rich.console import Console

from ftcluster.ansible.host_keys import Keys, Met
from ftcluster.ansible.inventory import Inventory
from ftcluster.errors import FtclusterError
from ftcluster.progress.view import make_view
from ftcluster.provision import questions

HOSTS = Inventory((Path("/i.ini"),), ("a", "b"), ("a", "b"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def met(name: str, known: Path) -> Met:
    return Met(name, f"10.0.0.{ord(name)}", f"{name} key\n", f"ED25519 SHA256:{name}", known)


def meet(monkeypatch: pytest.MonkeyPatch, keys: Keys, answer: str | None, accept: bool) -> bool:
    """Set up hosts with these keys; without an answer there is no terminal."""
    monkeypatch.setattr(questions, "ask_hosts", lambda *_: keys)
    kind = io.StringIO if answer is None else Terminal
    monkeypatch.setattr("sys.stdin", kind(f"{answer}\n"))
    monkeypatch.setattr("sys.stderr", kind())
    view = make_view(False, Console(quiet=True))
    return questions.meet("setup", HOSTS, HOSTS.hosts, (), view, accept)


@pytest.mark.parametrize(("answer", "accept"), [("y", False), ("YES", False), (None, True)])
def test_keys_are_stored_if_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, known: Path, answer: str | None, accept: bool
) -> None:
    assert meet(monkeypatch, Keys([met("a", known), met("b", known)]), answer, accept)
    assert known.read_text() == "a key\nb key\n"


@pytest.mark.parametrize("answer", ["", "n", "what", None])
def test_no_is_the_default_and_all_there_is_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, known: Path, answer: str | None
) -> None:
    with pytest.raises(FtclusterError) as caught:
        meet(monkeypatch, Keys([met("a", known), met("b", known)]), answer, False)
    assert caught.value.exit_code == 1
    for name in "ab":
        assert f"\n  {name}: its host key is not known here: " in caught.value.message
        assert f"ED25519 SHA256:{name}" in caught.value.message
    assert "--accept-new-host-keys" in caught.value.hint
    assert not known.exists()


@pytest.mark.parametrize("accept", [True, False])
def test_a_changed_key_keeps_the_others_from_being_stored(
    monkeypatch: pytest.MonkeyPatch, known: Path, accept: bool
) -> None:
    keys = Keys([met("a", known)], {"b": "its host key differs from the key known here"})
    with pytest.raises(FtclusterError, match=r"\n  b: its host key differs from") as caught:
        meet(monkeypatch, keys, "y", accept)
    assert "a: its host key is not known here: 10.0.0.97, ED25519 SHA256:a" in str(caught.value)
    assert not known.exists()


def test_keys_that_ssh_takes_by_now_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not meet(monkeypatch, Keys(), None, False)
