# Apache-2.0 (see LICENSE)
"""Validates the facts of a host, which could be any text, against the module's documentation."""

from __future__ import annotations

import re

TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}
MAY_BE_NONE = {"cpu_quota", "near", "prefix_refused", "python_refused", "speed_mbits"}
MOST_SHOWN = 60  # characters of a value
# line ends, terminal escapes and other control characters
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# values that become part of a path, an address or a line of a file
PATH = r"(/(?!\.\.(/|$))[\w.+@%=,~-]*)*"
NAME = r"[\w+-][\w.+-]*|"
FORMS = {
    "addresses": r"[0-9A-Fa-f:.]*",
    "cpu_flags": r"\w+",
    "cpus": r"[0-9,-]*",
    "current": NAME,
    "driver": r"[\w+-]*",
    "firewall_hosts": r"[0-9a-fA-F:.]+",
    "host_firewall": r"(firewalld|ufw)?",
    "interfaces": r"[^\s/]+",
    "local_ports": r"\d{1,5}(-\d{1,5})?",
    "machine": r"\w+",
    "name": r"[^\s/]+",  # of an interface
    "network_address": r"[\w:][\w:.%-]*|",
    "network_interface": r"[^\s/]*",
    "node_package": NAME,
    "openmp": PATH,
    "prefix": f"(?=/){PATH}",
    "python": NAME,
    "rdma_libraries": NAME,
    "stacks": NAME,
    "tcmalloc": PATH,
    "version": NAME,  # of a Python
}


def known_facts(answer, promised):
    """The documented facts of an answer, and messages about the invalid ones.

    Args:
        promised: `contains` of the module's documentation.

    >>> known_facts({"cores": "2", "more": 1}, {"cores": {"type": "int"}})
    ({'cores': '2'}, ["cores is not of type int: '2'"])
    """
    if not isinstance(answer, dict):
        return {}, [f"its facts are {_shown(answer)}"]
    missing = [f"{name} is missing" for name in promised if name not in answer]
    found = {name: value for name, value in answer.items() if name in promised}
    wrong = [said for name, value in found.items() for said in _wrong(name, value, promised[name])]
    return found, missing + wrong


def _wrong(name, value, spec):
    """What is wrong with one value and with what is in it."""
    kind = spec["type"]
    if value is None and name in MAY_BE_NONE:
        return []
    # Python takes true for a whole number
    if not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "bool"):
        return [f"{name} is not of type {kind}: {_shown(value)}"]
    if kind == "list":
        inner = {**spec, "type": spec["elements"]}
        return [said for one in value for said in _wrong(name, one, inner)]
    if kind == "dict":
        return known_facts(value, spec["contains"])[1]
    if kind == "str" and (CONTROL.search(value) or not re.fullmatch(FORMS.get(name, ".*"), value)):
        return [f"{name} is {_shown(value)}"]
    return []


def _shown(value):
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
