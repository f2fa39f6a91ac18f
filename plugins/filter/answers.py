# Apache-2.0 (see LICENSE)
"""What a shell command on a host answers, found among what else it prints."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers

DOCUMENTATION = r"""
name: answers
short_description: What a shell command on a host answers
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Takes the lines that begin with C(ftcluster-answer:), wherever they are, and passes over what a
    login script, a banner or sudo prints as well. A terminal makes one of stdout and stderr.
  - After the mark come a key and, if there is one, a value.
options:
  _input:
    description: The command's stdout.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Ask who may be become
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
  description: For each key its values, in their order.
  type: dict
  sample: {"uid": ["0"]}
"""


class FilterModule:
    def filters(self):
        return {"answers": answers}
