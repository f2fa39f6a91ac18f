# Apache-2.0 (see LICENSE)
"""Validates the facts of a host, which could be any text, against their schema."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_schema import HostFacts

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


def known_facts(answer: Any, schema: type[Any] = HostFacts) -> tuple[dict[str, Any], list[str]]:
    """The facts of an answer that the schema has, and messages about the invalid ones.

    >>> known_facts({"hostname": 3, "more": 1})[0]
    {'hostname': 3}
    """
    if not isinstance(answer, dict):
        return {}, [f"its facts are {_shown(answer)}"]
    types = get_type_hints(schema)
    missing = [f"{name} is missing" for name in types if name not in answer]
    found = {name: value for name, value in answer.items() if name in types}
    wrong = [said for name, value in found.items() for said in _wrong(name, value, types[name])]
    return found, missing + wrong


def _wrong(name: str, value: Any, kind: Any) -> list[str]:
    """What is wrong with one value and with what is in it."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
        if value is None:
            return []
    plain = list if get_origin(kind) is list else dict if is_dataclass(kind) else kind
    # Python takes true for a whole number
    right = isinstance(value, (int, float) if plain is float else plain)
    if not right or isinstance(value, bool) != (plain is bool):
        return [f"{name} is not of type {plain.__name__}: {_shown(value)}"]
    if plain is list:
        (inner,) = get_args(kind)
        return [said for one in value for said in _wrong(name, one, inner)]
    if plain is dict:
        return known_facts(value, kind)[1]
    if plain is str and (CONTROL.search(value) or not re.fullmatch(FORMS.get(name, ".*"), value)):
        return [f"{name} is {_shown(value)}"]
    return []


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
