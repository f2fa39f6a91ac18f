# Apache-2.0 (see LICENSE)
"""Determines if root is available on a host, or else the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers

DOCUMENTATION = r"""
name: root_answer
short_description: Determines if root is available on a host, and if not, why
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Reads the result of a raw task that runs C(id -u) as root. Its output may also contain the
    output of login scripts, banners and sudo. The relevant lines consist of C(ftcluster-answer:), a
    key and a value.
options:
  _input:
    description: The task's result; skipped or missing means that root is not wanted.
    type: dict
    required: true
"""

EXAMPLES = r"""
root: "{{ preflight__root | ftcluster.cluster.root_answer }}"
"""

RETURN = r"""
_value:
  description:
    - C(can), true if root is available.
    - C(because), the reason why it is not; empty if it is available or not wanted.
    - C(wrong_password), true if the host rejects the password.
    - C(asks_password), true if the host asks for a password and none was provided.
    - C(user), the name of the become user, if it was printed.
    - C(refused), the folders that root may not write to; C(temp) is Ansible's folder for files, and
      C(prefix) the cluster's folder.
    - C(sshd), with the C(rules) on logins, their C(lines) in the files, and the C(groups) of the
      training account.
  type: dict
  sample:
    {can: false, because: sudo is not installed, wrong_password: false, asks_password: false,
     user: "", refused: [], sshd: {rules: [], lines: [], groups: []}}
"""


NO_TERMINAL = (
    "which Ansible does not provide: add Defaults:USER !requiretty to sudoers for the user that "
    "Ansible logs in as"
)


def root_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the availability of root, from the registered result of a raw task."""
    message, told = result.get("msg") or "", answers(result.get("stdout") or "")
    # without a terminal, sudo prints its errors to stderr
    out = "\n".join(result.get(stream) or "" for stream in ("stdout", "stderr"))
    user = told.get("uid", [""])[-1]
    wrong, asks = "Incorrect" in message, False
    if user == "0" or result.get("skipped") or not result:
        because = ""
    elif user:
        because = f"the attempt to become root ended as user {user}"
    elif wrong:
        because = "sudo refuses the password"
    elif "password" in message or "password is required" in out:
        because, asks = "sudo asks for a password; pass it with -K", True
    elif "must have a tty" in out:
        because = f"sudo requires a terminal (requiretty in sudoers), {NO_TERMINAL}"
    elif "not found" in out:
        because = "sudo is not installed"
    else:
        said = [line.strip() for line in [*message.splitlines(), *out.splitlines()] if line.strip()]
        because = said[-1] if said else "the host did not respond"
    can = user == "0"
    return {
        "can": can,
        "because": because,
        "wrong_password": wrong,
        "asks_password": asks,
        "user": told.get("user", [""])[-1],
        "refused": told.get("refused", []),
        "sshd": {
            "rules": told.get("sshd", []),
            "lines": told.get("sshd_line", []),
            "groups": told.get("account_groups", [""])[-1].split(),
        },
    }


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"root_answer": root_answer}
