"""The reasons why a signal ended a program."""

import signal
import subprocess
import sys

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.killed import (
    memory_kills,
    why_killed,
)
from ansible_collections.ftcluster.cluster.plugins.modules import environment


def test_only_a_sigkill_can_be_for_want_of_memory() -> None:
    assert why_killed(0, True) == why_killed(1, True) == why_killed(137, True) == ""
    assert "the host is out of memory" in why_killed(-9, True)
    assert why_killed(-9, False) == "was killed by signal 9 (SIGKILL)"
    assert why_killed(-11, True) == "was killed by signal 11 (SIGSEGV)"
    assert why_killed(-signal.SIGRTMIN - 1, True) == f"was killed by signal {signal.SIGRTMIN + 1}"
    assert memory_kills() >= 0


def test_an_installer_that_was_killed_is_named() -> None:
    class Failed(Exception):
        pass

    class Module:
        def run_command(self, argv: list[str], **_: object) -> tuple[int, str, str]:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

        def fail_json(self, msg: str) -> None:
            raise Failed(msg)

    code = "import os; os.kill(os.getpid(), 15)"
    with pytest.raises(Failed, match=r"-c .* was killed by signal 15 \(SIGTERM\)$"):
        environment.run(Module(), [sys.executable, "-c", code])
