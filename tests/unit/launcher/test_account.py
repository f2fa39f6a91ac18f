"""Root looks at an account's files as the account."""

import os
import pwd
from pathlib import Path

import pytest

from ftcluster_train import supervisor
from ftcluster_train.io.events import has_ended
from ftcluster_train.launcher import background
from ftcluster_train.launcher.account import as_account

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become an account")
NAME = "nobody"


def test_a_look_has_no_rights_but_the_accounts() -> None:
    account = pwd.getpwnam(NAME)

    def has_them() -> bool:
        ids = os.getresuid() == (account.pw_uid,) * 3 and os.getresgid() == (account.pw_gid,) * 3
        return ids and not os.getgroups()

    assert as_account(NAME, has_them, 60)
    assert not as_account(NAME, Path("/etc/shadow").read_bytes, 60)  # type: ignore[arg-type]


def test_a_pipe_in_a_files_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    tmp_path.chmod(0o755)
    assert not as_account(NAME, lambda: has_ended(tmp_path), 0.2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_root_starts_a_supervisor_without_opening_the_accounts_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "runs" / "r-1"
    run_dir.mkdir(parents=True)
    for name in ("events.jsonl", "launch.json", "supervisor.pid"):
        os.mkfifo(run_dir / name)
    monkeypatch.setattr(background, "START_SECONDS", 0.1)
    monkeypatch.setattr(background, "SYSTEMD", tmp_path / "none")
    assert supervisor.start(run_dir, NAME) == supervisor.NO_UNIT
