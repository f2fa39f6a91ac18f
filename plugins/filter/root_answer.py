# Apache-2.0 (see LICENSE)
"""Whether root can be had on a host, and if not, why."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers

DOCUMENTATION = r"""
name: root_answer
short_description: Whether root can be had on a host, and if not, why
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Reads the result of a task that becomes root and tells C(id -u).
options:
  _input:
    description: The task's result; one that was skipped or left out means that root is not wanted.
    type: dict
    required: true
"""

EXAMPLES = r"""
root: "{{ preflight__root | ftcluster.cluster.root_answer }}"
"""

RETURN = r"""
_value:
  description:
    - C(can), whether root can be had.
    - C(because), why not, in a few words; empty where it can, or is not wanted.
    - C(wrong_password), whether a password was given that the host refuses.
  type: dict
  sample: {"can": false, "because": "there is no sudo", "wrong_password": false}
"""


def root_answer(result):
    """The answer, from the registered result of a raw task."""
    out, message = result.get("stdout") or "", result.get("msg") or ""
    user = answers(out).get("uid", [""])[-1]
    wrong = "Incorrect" in message
    if user == "0" or result.get("skipped") or not result:
        because = ""
    elif user:
        because = f"becoming root gives the user {user}"
    elif wrong:
        because = "sudo refuses the password"
    elif "password" in message or "password is required" in out:
        because = "sudo asks for a password, which -K would give"
    elif "not found" in out:
        because = "there is no sudo"
    else:
        said = [line.strip() for line in [*message.splitlines(), *out.splitlines()] if line.strip()]
        because = said[-1] if said else "the host gave no answer"
    return {"can": user == "0", "because": because, "wrong_password": wrong}


class FilterModule:
    def filters(self):
        return {"root_answer": root_answer}
