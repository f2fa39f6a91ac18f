#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads the firewall of a host: nftables' rules, and those of them that are ftcluster's."""

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_facts
short_description: Reads nftables' rules of a host, and whether ftcluster's are in force
description:
  - Reads what the role P(ftcluster.cluster.firewall#role) has to know of a host. Changes nothing.
  - Needs root, because only root can list rules.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  with_ruleset:
    description: Whether all rules of the host are returned, which may be many.
    type: bool
    default: false
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: Read whether the rules are in force
  ftcluster.cluster.firewall_facts:
  become: true
  register: firewall
"""

RETURN = r"""
nft:
  description: The path of the program C(nft); empty where there is none.
  returned: success
  type: str
  sample: /usr/sbin/nft
ruleset:
  description: All rules, as C(nft -j list ruleset) prints them.
  returned: O(with_ruleset=true)
  type: dict
  sample: {"nftables": []}
has_table:
  description: Whether there is the table C(inet ftcluster).
  returned: success
  type: bool
state:
  description: >-
    V(none) where setup has made no rules, V(loaded) where they are in force, else V(gone).
  returned: success
  type: str
  sample: loaded
digest:
  description: The digest in the comment of the rules that are in force; empty where there are none.
  returned: success
  type: str
  sample: 0123456789abcdef
ports:
  description: The ports and ranges that the file of the rules closes.
  returned: success
  type: str
  sample: 29500-29999, 32768-60999
ssh_port:
  description: The port that SSH came in by; empty where it did not.
  returned: success
  type: str
  sample: "22"
unit:
  description: What systemd says of C(ftcluster-firewall.service), whether it is enabled and active.
  returned: success
  type: str
  sample: enabled active
"""

import json
import os
import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

RULES = Path("/etc/ftcluster/firewall.nft")
UNIT = "ftcluster-firewall.service"
FOLDERS = ["/usr/sbin", "/sbin"]  # which are not on every user's search path
DIGEST = re.compile(r'comment "ftcluster ([0-9a-f]+)"')
PORTS = re.compile(r"set ports \{[^{}]*elements = \{([^{}]*)\}")


def ssh_port(pid=None, proc=Path("/proc")):
    """The host's port of the SSH session that a process belongs to, "" where there is none.

    sudo takes SSH_CONNECTION out of the environment, but one of the parents still has it.
    """
    pid = pid or os.getpid()
    while pid > 1:
        try:
            environment = (proc / str(pid) / "environ").read_bytes()
            status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        found = re.search(rb"(?:^|\0)SSH_CONNECTION=([^\0]*)", environment)
        if found:
            return found[1].decode(errors="replace").rpartition(" ")[2]
        pid = int(re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)[1])
    return ""


def digest_in_force(ruleset):
    """The digest in the comment of ftcluster's rules, "" where none is loaded.

    >>> rule = {"family": "inet", "table": "ftcluster", "comment": "ftcluster 0a"}
    >>> digest_in_force([{"rule": rule}])
    '0a'
    """
    rules = [one["rule"] for one in ruleset if "rule" in one]
    comments = [
        rule.get("comment", "")
        for rule in rules
        if (rule["family"], rule["table"]) == ("inet", "ftcluster")
    ]
    found = [re.fullmatch("ftcluster ([0-9a-f]+)", comment) for comment in comments]
    return next((match[1] for match in found if match), "")


def state_of(rules, digest):
    """Whether the rules of a file are those in force.

    >>> state_of('drop comment "ftcluster 0a"', "0a"), state_of("", "")
    ('loaded', 'none')
    """
    wanted = DIGEST.search(rules)
    return "none" if not wanted else "loaded" if wanted[1] == digest else "gone"


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"with_ruleset": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )

    def output(*argv):
        return module.run_command(list(argv))[1].strip()

    nft = module.get_bin_path("nft", opt_dirs=FOLDERS)
    systemctl = module.get_bin_path("systemctl")
    states = [output(systemctl, verb, UNIT) for verb in ("is-enabled", "is-active") if systemctl]
    listed = output(nft, "-j", "list", "ruleset") if nft else ""
    ruleset = json.loads(listed or '{"nftables": []}')
    rules = RULES.read_text(encoding="utf-8") if RULES.is_file() else ""
    digest = digest_in_force(ruleset["nftables"])
    tables = [nftable["table"] for nftable in ruleset["nftables"] if "table" in nftable]
    ports = PORTS.search(rules)
    module.exit_json(
        changed=False,
        nft=nft or "",
        has_table=any(
            (table["family"], table["name"]) == ("inet", "ftcluster") for table in tables
        ),
        state=state_of(rules, digest),
        digest=digest,
        ports=ports[1].strip() if ports else "",
        ssh_port=ssh_port(),
        unit=" ".join(states).strip(),
        **({"ruleset": ruleset} if module.params["with_ruleset"] else {}),
    )


if __name__ == "__main__":
    main()
