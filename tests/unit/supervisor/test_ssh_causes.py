"""Causes of failed connections, recognized in messages of OpenSSH.

openssh.json has the output of `ssh` for hosts, keys and accounts that fail: each case was provoked
on hosts of the testbed, with the client and server of Debian 12.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.supervisor.ssh_causes import cause_of, describe

CASES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("openssh.json").read_text(encoding="utf-8")
)["cases"]
LASTING = {
    "changed", "revoked", "unknown", "denied", "nokey", "openkey", "noshell",
}  # fmt: skip


def printed_by(case: str) -> str:
    return f"{CASES[case]['stdout']}{CASES[case]['stderr']}"


@pytest.mark.parametrize("case", CASES)
def test_each_failure_has_its_cause(case: str) -> None:
    code, printed = CASES[case]["exit_code"], printed_by(case)
    cause = cause_of(code, printed)
    assert cause.name == CASES[case]["cause"]
    assert cause.lasting == (case in LASTING)
    assert cause.remedy
    message = describe(cause, printed)
    assert "\n" not in message
    assert message.startswith(f"ssh from the head fails ({cause.name}): ")


def test_the_message_has_the_line_that_matters() -> None:
    def message(case: str) -> str:
        return describe(cause_of(CASES[case]["exit_code"], printed_by(case)), printed_by(case))

    sent = "SHA256:NmUS0ILeKcXbUkoS4fI1H6Qi6a0qtK1nkDAjfH423tg"
    assert message("changed").endswith(f"since the last setup; it now shows ED25519 {sent}")
    assert "revoked" in message("revoked")
    assert "No ED25519 host key is known for 198.18.0.12" in message("unknown")
    assert "Permission denied (publickey" in message("denied")
    assert message("noroute").endswith("port 22: No route to host")
    assert message("shut").endswith("This account is currently not available.")
    assert message("truly").endswith("without output")


def test_a_message_that_no_pattern_knows_is_passed_on() -> None:
    text = "ssh_dispatch_run_fatal: Connection to 198.18.0.12 port 22: incorrect signature"
    cause = cause_of(255, text)
    assert (cause.name, cause.lasting) == ("unknown cause", False)
    assert describe(cause, text).endswith(text)
