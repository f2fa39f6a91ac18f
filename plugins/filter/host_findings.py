# Apache-2.0 (see LICENSE)
"""Finds the reasons why a host cannot be part of a training cluster, or is slow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.cpu import GENERATIONS_WITH_AMX
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import READ_ONLY_HINT
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed

DOCUMENTATION = r"""
name: host_findings
short_description: Finds the reasons why a host cannot be part of a training cluster, or is slow
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Compares the facts of a host with the requirements, and the ports of other accounts' listening
    programs with the ports that the firewall will close.
  - A service on a port of the kernel's usual ephemeral range, or on one of ftcluster's ports, is a
    notice. An administrator must have chosen any other port, so closing it is a problem.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts).
    type: dict
    required: true
  requirements:
    description:
      - Keys C(machine), C(python), C(memory_bytes), C(free_bytes), and optionally C(root), and
        C(firewall), which needs root.
    type: dict
    required: true
  closed:
    description: Ports and ranges that the firewall will close to all but the cluster.
    type: list
    elements: str
    default: []
  known:
    description: Ports and ranges that the user has listed explicitly, either to close them or to
        leave them open.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
found: "{{ preflight_facts | ftcluster.cluster.host_findings(requirements, ['32768-60999']) }}"
"""

RETURN = r"""
_value:
  description: Two lists of findings, C(problems) and C(notices), each with C(what) and C(hint).
  type: dict
  sample: {problems: [{what: it is slow, hint: check its fans}], notices: []}
"""

FactValues = Mapping[str, Any]
Findings = Iterator[dict[str, str]]
FREE_NAME = "set ftcluster_user to an unused name"
# A name that useradd accepts, which becomes part of limits.conf; empty if the login user trains.
ACCOUNT = re.compile(r"([a-z_][a-z0-9_-]{0,31})?")
# a number with an optional currency
PRICE = re.compile(r"(\d+(\.\d+)?( [^\s\d]{1,8})?)?")
USUAL_PORTS = {*range(29500, 30000), *range(32768, 61000)}
# the account's home, as in playbooks/vars/cluster.yml, and the file that the role ssh_mesh writes
HOME, KEYS = "/var/lib/ftcluster", ".ssh/authorized_keys"
ELSEWHERE = "choose another folder with -e ftcluster_prefix=DIR"
GIVE_ROOT = "make root available (-K asks for a password)"


def finding(what: str, hint: str) -> dict[str, str]:
    """Return one problem or notice."""
    return {"what": what, "hint": hint}


def version(text: str) -> tuple[int, ...]:
    """Convert a version to numbers: (3, 11, 7) for 3.11.7."""
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def root_problems(facts: FactValues, requirements: FactValues) -> Findings:
    """Return the reasons why root is required but not available."""
    because = facts.get("no_root_because") or "ftcluster_root is false"
    if facts.get("wrong_password"):
        yield finding(
            "sudo refuses the password that you passed", "pass the right password, or none"
        )
    elif requirements.get("root") and not facts["can_become_root"]:
        yield finding(
            f"root is required, but not available: {because}",
            f"{GIVE_ROOT}, or accept hosts without root with ftcluster_root=true",
        )
    elif requirements.get("firewall") and not facts["can_become_root"]:
        yield finding(
            f"the firewall is required and needs root, which is not available: {because}",
            f"{GIVE_ROOT}, or accept hosts without root with ftcluster_firewall=true",
        )
    elif facts.get("asks_password") and not facts.get("only_account") and not is_local(facts):
        yield finding(
            "sudo asks for a password, and root is needed to set up the training account, "
            "tcmalloc, limits, huge pages and the firewall",
            "pass the password with -K, which prompts for it, or with --become-password-file FILE; "
            "to train without root, as the login user, pass -e ftcluster_root=false",
        )


def is_local(facts: FactValues) -> bool:
    """Return True if the host is the control node, where users without root may try ftcluster."""
    return bool(facts.get("connection") == "local")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return True if a name matches a pattern list of sshd_config (see PATTERNS in ssh_config(5)).

    >>> matches("ops", ["!o*", "*"]), matches("ml", ["!o*", "m?"]), matches("ml", ["ml@10.0.0.*"])
    (False, True, True)
    """
    # the client's address after @ is unknown here
    plain = [pattern.partition("@")[0] for pattern in patterns]
    refused = any(p.startswith("!") and fnmatchcase(name, p[1:]) for p in plain)
    return not refused and any(fnmatchcase(name, p) for p in plain)


def lets_key_in(keyword: str, value: str, user: str) -> bool:
    """Return True if a setting of sshd lets the head log in with the key in the account's home.

    >>> lets_key_in("authorizedkeysfile", "/etc/ssh/keys/%u %h/.ssh/authorized_keys", "ml")
    True
    >>> lets_key_in("authenticationmethods", "publickey,password keyboard-interactive", "ml")
    False
    """
    words = value.split()
    if keyword == "pubkeyauthentication":
        return words != ["no"]
    if keyword == "authenticationmethods":
        return bool({"any", "publickey"}.intersection(words))
    if keyword == "authorizedkeysfile":
        places = {word.replace("%h/", "").replace("%u", user) for word in words}
        return bool({KEYS, f"{HOME}/{KEYS}"} & places)
    return True


def sshd_problems(facts: FactValues) -> Findings:
    """Return problems about settings of sshd that keep the head from logging in."""
    sshd, user = facts.get("sshd") or {}, facts.get("rank_user", "")
    found: dict[str, list[str]] = {}
    for rule in sshd.get("rules", ()) if user else ():
        keyword, value = rule.partition(" ")[::2]
        found.setdefault(keyword, []).append(value)
    for keyword, values in found.items():
        value = " ".join(values)  # old releases print a line for each name of a list
        of_groups, allows = keyword.endswith("groups"), keyword.startswith("allow")
        if keyword.startswith(("allow", "deny")):
            patterns = [word for word in value.split() if allows or "@" not in word]
            names = sshd.get("groups", []) if of_groups else [user]
            if any(matches(name, patterns) for name in names) == allows:
                continue
            kind = f"the {'group' if of_groups else 'account'} "
            hint = f"add {kind}{names[0]} there" if allows else f"remove {kind}from that line"
        elif lets_key_in(keyword, value, user):
            continue
        else:
            right = {"pubkeyauthentication": "yes", "authenticationmethods": "publickey"}
            hint = (
                f"write at the end of sshd_config: Match User {user}, and below it: {keyword} "
                f"{right.get(keyword, KEYS)}"
            )
        parts = [line.split(":", 2) for line in sshd.get("lines", ()) if line.count(":") > 1]
        lines = [
            f"{path}:{number}: {text.strip()}"
            for path, number, text in parts
            if text.strip().lower().startswith(keyword)
        ]
        yield finding(
            f"its sshd does not let {user}, the account that trains, log in from the head: "
            f"{'; '.join(lines) or f'{keyword} {value}'}",
            f"{hint}, then run: sudo systemctl reload ssh (on the Red Hat family: sshd)",
        )


def read_only(facts: FactValues) -> Sequence[str]:
    """Return the folders that are mounted read-only; saved facts of older versions have none."""
    folders: Sequence[str] = facts.get("read_only", ())
    return folders


def refused_to_root(facts: FactValues) -> Findings:
    """Return problems about folders that root may not write to, as on NFS with root_squash."""
    if "prefix" in facts.get("root_refused", ()) and facts["prefix"] not in read_only(facts):
        yield finding(
            f"root may not write to {facts['prefix']}: its file system is read-only, or on a "
            "server that maps root to nobody (NFS with root_squash)",
            ELSEWHERE,
        )
    if "temp" in facts.get("root_refused", ()):
        yield finding(
            "root may not write to the folder for Ansible's files in the login user's home "
            "(ansible_remote_tmp): its file system is read-only, or on a server that maps root to "
            "nobody (NFS with root_squash)",
            # do not suggest a new subfolder, because root's first module would create it for root
            # alone
            "set ansible_remote_tmp in the inventory to a folder on the host's disk that all users "
            "may write to, such as ansible_remote_tmp=/var/tmp",
        )


def account_problems(facts: FactValues) -> Findings:
    """Return a problem if another account already has the training account's name."""
    user, origin = facts.get("rank_user", ""), facts.get("rank_user_origin", "")
    if not user or origin not in ("other", "directory"):
        return
    mine = f"sudo usermod --comment 'ftcluster training' {user}"
    whose = {
        "other": (
            "exists already, and ftcluster did not create it",
            "; or hand this account over to ftcluster, whose teardown removes it and its home: "
            f"{mine}",
        ),
        "directory": (
            "comes from a directory (LDAP, AD) and not from /etc/passwd, so that ftcluster cannot "
            "change it",
            "",
        ),
    }
    what, more = whose[origin]
    yield finding(f"the account {user}, which would train, {what}", f"{FREE_NAME}{more}")


def host_problems(facts: FactValues, requirements: FactValues) -> Findings:
    """Return the reasons why the host cannot be part of the cluster."""
    yield from root_problems(facts, requirements)
    if not ACCOUNT.fullmatch(facts.get("rank_user", "")):
        yield finding(
            f"{facts['rank_user']!a} is not a valid account name",
            "set ftcluster_user to lower-case letters, digits, dashes and underscores",
        )
    yield from account_problems(facts)
    if not PRICE.fullmatch(facts.get("price_per_hour", "")):
        yield finding(
            f"its price, {facts['price_per_hour']!a}, is not a number with or without a currency",
            "write it like ftcluster_price_per_hour='4.08 USD'",
        )
    if facts["machine"] != requirements["machine"]:
        yield finding(
            f"its architecture is {facts['machine']}, but the stacks are built for "
            f"{requirements['machine']}",
            "remove it from the inventory",
        )
    pythons = [python["version"] for python in facts["pythons"]]
    oldest = requirements["python"]
    if max(map(version, pythons)) < version(oldest):
        yield finding(
            f"Python {', '.join(pythons)} is too old; {oldest} or newer is needed",
            "install a newer Python",
        )
    yield from sshd_problems(facts)
    for folder in read_only(facts):
        yield finding(f"{folder} is on a file system that is mounted read-only", READ_ONLY_HINT)
    explained = facts.get("only_account") or facts["prefix"] in read_only(facts)
    if not facts["prefix_writable"] and not explained:
        yield finding(f"{facts['prefix']} is not writable", ELSEWHERE)
    if facts["prefix_refused"]:
        yield facts["prefix_refused"]
    yield from refused_to_root(facts)
    if facts["free_bytes"] < requirements["free_bytes"]:
        available, required = free_and_needed(facts["free_bytes"], requirements["free_bytes"])
        what = f"only {available} are free at {facts['prefix']}, but {required} are needed"
        yield {
            **finding(what, f"free some space or {ELSEWHERE}"),
            "needed_bytes": str(requirements["free_bytes"]),
        }
    if facts["memory_bytes"] < requirements["memory_bytes"]:
        memory, required = free_and_needed(facts["memory_bytes"], requirements["memory_bytes"])
        yield finding(f"it has {memory} of memory, but {required} are needed", "use a larger host")


def amx_notices(facts: FactValues) -> Findings:
    """Return the reason why programs on the host cannot use the CPU's AMX."""
    generation, kernel = facts.get("cpu_generation", "other"), facts.get("kernel", "")
    if facts.get("amx") == "refused":
        yield finding(
            f"its CPU has AMX, but its kernel {kernel} denies it to programs, so training runs in "
            "fp32 and is slower",
            "boot Linux 5.16 or newer, or a distribution's kernel that supports AMX; in a "
            "container, allow the system call arch_prctl",
        )
    if facts.get("amx") == "absent" and generation in GENERATIONS_WITH_AMX:
        yield finding(
            f"its CPU generation, {generation}, has AMX, but the hypervisor or the kernel {kernel} "
            "hides it, so training runs in fp32 and is slower",
            "make the hypervisor pass on the CPU's features, or boot Linux 5.16 or newer",
        )


def services(found: Sequence[FactValues], closes: str, hint: str) -> Findings:
    """Return one finding about services that the firewall closes, if there are any."""
    if found:
        ports = ", ".join(str(service["port"]) for service in found)
        named = ", ".join(f"{service['port']} (user {service['user']})" for service in found)
        yield finding(
            f"services listen on ports that the firewall {closes} to all but the cluster, because "
            f"the kernel uses these ports for outgoing connections: {named}",
            hint.format(ports=ports),
        )


def host_findings(
    facts: FactValues,
    requirements: FactValues,
    closed: Iterable[str] = (),
    known: Iterable[object] = (),
) -> dict[str, list[dict[str, str]]]:
    """Return all findings of one host."""
    guarded = number_list(",".join(closed)) - number_list(",".join(map(str, known)))
    hit = [service for service in facts.get("services", []) if service["port"] in guarded]
    usual = [service for service in hit if service["port"] in USUAL_PORTS]
    chosen = [service for service in hit if service not in usual]
    leave = "to leave them open for this host: ftcluster_firewall_open_ports=[{ports}]"
    close = "to close them: ftcluster_firewall_ports=[{ports}]"
    return {
        "problems": [
            *host_problems(facts, requirements),
            *services(chosen, "would close", f"{leave}; {close}"),
        ],
        "notices": [*amx_notices(facts), *services(usual, "closes", leave)],
    }


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"host_findings": host_findings}
