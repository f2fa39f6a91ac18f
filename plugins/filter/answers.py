# Apache-2.0 (see LICENSE)
"""Finds a shell command's answers among its other output."""

from __future__ import annotations

from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers

DOCUMENTATION = r"""
name: answers
short_description: Finds a shell command's answers among its other output
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Reads the lines that begin with C(ftcluster-answer:) and ignores the output of login scripts,
    banners and sudo. A terminal merges stderr into stdout.
  - A key and optionally a value follow the mark.
options:
  _input:
    description: The command's stdout.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Test sudo
  ansible.builtin.raw: |
    tell() { printf 'ftcluster-%s: %s\n' answer "$*"; }
    tell uid "$(id -u)"
  become: true
  register: asked

- name: Show it
  ansible.builtin.debug:
    msg: "{{ (asked.stdout | ftcluster.cluster.answers).uid | first }}"
"""

RETURN = r"""
_value:
  description: The values of each key, in order.
  type: dict
  sample: {"uid": ["0"]}
"""


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"answers": answers}
