#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads the rules of nftables on a host, and finds the rules of ftcluster in them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_facts
short_description: Reads a host's nftables rules, and whether ftcluster's rules are loaded
description:
  - Reads the facts that the role P(ftcluster.cluster.firewall#role) needs. Changes nothing.
  - Needs root, because only root can list rules.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.reads
options:
  hosts:
    description: Addresses of hosts that other tables may block.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Read the state of the rules
  ftcluster.cluster.firewall_facts:
  become: true
  register: firewall
"""

RETURN = r"""
nft:
  description: The path of the program C(nft); empty if it is not installed.
  returned: success
  type: str
  sample: /usr/sbin/nft
closing:
  description: >-
    The chains of other tables that drop packets from some of O(hosts). C(has_ufw) is true for
    chains of ufw.
  returned: success
  type: list
  elements: dict
  sample: [{family: inet, table: firewalld, name: filter_INPUT, has_ufw: false}]
has_table:
  description: True if the table C(inet ftcluster) exists.
  returned: success
  type: bool
state:
  description: >-
    V(none) if setup has written no rules, V(loaded) if its rules are in force, and V(gone) if they
    are not.
  returned: success
  type: str
  sample: loaded
digest:
  description: The digest in the comment of the loaded rules; empty if none are loaded.
  returned: success
  type: str
  sample: 0123456789abcdef
ports:
  description: The ports and ranges that the rules in the file close.
  returned: success
  type: str
  sample: 29500-29999, 32768-60999
ssh_port:
  description: The port of the SSH connection; empty without SSH.
  returned: success
  type: str
  sample: "22"
unit:
  description: >-
    The output of C(systemctl is-enabled) and C(systemctl is-active) for
    C(ftcluster-firewall.service).
  returned: success
  type: str
  sample: enabled active
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.network import find_ssh_connection
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import read

RULES = Path("/etc/ftcluster/firewall.nft")
UNIT = "ftcluster-firewall.service"
FOLDERS = ["/usr/sbin", "/sbin"]  # may be missing in a user's search path
DIGEST = re.compile(r'comment "ftcluster ([0-9a-f]+)"')
# families of tables, and names of statements; libnftables-json(5)
FAMILIES = ("inet", "ip", "ip6")
DROPS = {"drop", "reject"}
HARMLESS = {"counter", "log"}
PORTS = re.compile(r"set ports \{[^{}]*elements = \{([^{}]*)\}")


def digest_in_force(ruleset: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest in the comment of ftcluster's rules, or "" if none are loaded.

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


def closing_chains(
    ruleset: Sequence[Mapping[str, Any]], hosts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the chains of other tables that drop incoming packets of the cluster's hosts.

    A chain drops packets if its policy is drop, or if its last rule drops all packets. Ignore
    tables that name every host, and tables that have a rule with ftcluster's comment.
    """
    closing = []
    for chain in (one["chain"] for one in ruleset if "chain" in one):
        family, table = chain["family"], chain["table"]
        if chain.get("hook") != "input" or family not in FAMILIES or table == "ftcluster":
            continue
        rules = [
            one["rule"]
            for one in ruleset
            if "rule" in one and (one["rule"]["family"], one["rule"]["table"]) == (family, table)
        ]
        sets = [one["set"] for one in ruleset if "set" in one and one["set"]["table"] == table]
        exprs = [rule.get("expr", ()) for rule in rules if rule["chain"] == chain["name"]]
        last = {word for part in exprs[-1] for word in part} if exprs else set()
        closes = chain.get("policy") == "drop" or (last & DROPS and last <= DROPS | HARMLESS)
        text = json.dumps([rules, sets])
        meant = [host for host in hosts if family == "inet" or (":" in host) == (family == "ip6")]
        unnamed = any(json.dumps(host) not in text for host in meant)
        if closes and unnamed and '"comment": "ftcluster"' not in text:
            name = {"family": family, "table": table, "name": chain["name"]}
            closing.append({**name, "has_ufw": "ufw-" in text})
    return closing


def state_of(rules: str, digest: str) -> str:
    """Return the state of the rules in a file, such as loaded or none.

    >>> state_of('drop comment "ftcluster 0a"', "0a"), state_of("", "")
    ('loaded', 'none')
    """
    wanted = DIGEST.search(rules)
    return "none" if not wanted else "loaded" if wanted[1] == digest else "gone"


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"hosts": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )

    def output(*argv: str) -> str:
        return str(module.run_command(list(argv))[1]).strip()

    nft = module.get_bin_path("nft", opt_dirs=FOLDERS)
    systemctl = module.get_bin_path("systemctl")
    states = [output(systemctl, verb, UNIT) for verb in ("is-enabled", "is-active") if systemctl]
    listed = output(nft, "-j", "list", "ruleset") if nft else ""
    ruleset = json.loads(listed or '{"nftables": []}')
    rules = read(RULES)
    digest = digest_in_force(ruleset["nftables"])
    tables = [nftable["table"] for nftable in ruleset["nftables"] if "table" in nftable]
    ports = PORTS.search(rules)
    module.exit_json(
        changed=False,
        nft=nft or "",
        closing=closing_chains(ruleset["nftables"], module.params["hosts"]),
        has_table=any(
            (table["family"], table["name"]) == ("inet", "ftcluster") for table in tables
        ),
        state=state_of(rules, digest),
        digest=digest,
        ports=ports[1].strip() if ports else "",
        ssh_port=find_ssh_connection(os.environ, os.getppid(), read).rpartition(" ")[2],
        unit=" ".join(states).strip(),
    )


if __name__ == "__main__":
    main()
