import getpass
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcluster.ansible.scratch import answer_in_memory
from ftcluster.cli.connection import ask_passwords
from ftcluster.operations.connection import remembered


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the folder in memory by a temporary folder."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "memory"))
    return tmp_path / "memory"


def answers(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Answer the questions in order; return the questions."""
    questions: list[str] = []
    left: Iterator[str] = iter(words)

    def answer(question: str) -> str:
        questions.append(question)
        return next(left)

    monkeypatch.setattr(getpass, "getpass", answer)
    return questions


def test_only_how_to_reach_the_hosts_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch()
    (tmp_path / "ops").touch()
    given = (
        "--limit", "a", "--extra-vars", "secret=1", "--user", "ops", "--private-key", "key",
        "--vault-id", "prod@prompt", "--check",
    )  # fmt: skip
    assert remembered(given) == (
        "--user", "ops", "--private-key", f"{tmp_path}/key", "--vault-id", "prod@prompt",
    )  # fmt: skip
    assert remembered(remembered(given)) == remembered(given)


def test_nothing_is_asked_that_is_not_wanted(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = answers(monkeypatch)
    with ask_passwords({"--ask-pass": False}) as arguments:
        assert arguments == ()
    assert questions == []
    assert list(memory.iterdir()) == []


def test_answers_have_no_name_and_go_away(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = answers(monkeypatch, "bec", "pässword")
    with ask_passwords({"--ask-become-pass": True, "--ask-pass": True}) as arguments:
        assert arguments[0::2] == ("--become-password-file", "--connection-password-file")
        files = [Path(name) for name in arguments[1::2]]
        # another program of the user, ansible-inventory, may open the file
        said = subprocess.run(["cat", *files], capture_output=True, text=True, check=True).stdout
        assert said == "bec\npässword\n"
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert [file.stat().st_nlink for file in files] == [0, 0]
        found = [answer_in_memory(word) for word in arguments]
        assert found == [None, b"bec\n", None, "pässword\n".encode()]
        assert list(memory.iterdir()) == []
    assert questions == ["BECOME password: ", "SSH password: "]
    assert not any(file.exists() for file in files)


def test_answers_go_away_when_the_command_or_a_question_is_interrupted(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    answers(monkeypatch, "secret")
    with pytest.raises(KeyboardInterrupt), ask_passwords({"--ask-vault-pass": True}) as arguments:
        interrupted()
    assert not Path(arguments[1]).exists()
    monkeypatch.setattr(getpass, "getpass", interrupted)
    with pytest.raises(KeyboardInterrupt), ask_passwords({"--ask-pass": True}):
        pytest.fail("there is no answer")
    assert list(memory.iterdir()) == []
