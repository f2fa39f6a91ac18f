# Apache-2.0 (see LICENSE)
"""Validates facts or a report from a host against a schema; the host may send any text."""

from __future__ import annotations

import math
import re
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, NewType, get_args, get_origin, get_type_hints

from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import (
    number_list,
    ranges,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import whole_cores
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_schema import (
    HostFactsSchema,
    PythonSchema,  # noqa: F401 - of the example
)

Lines = NewType("Lines", str)  # a fact for people, in which every character is allowed
MOST_SHOWN = 60  # maximum length of a value in characters
MOST_NUMBER = 1 << 63
MISSING = " is missing"
SIGNED = ("clock_offset_seconds",)
# line ends, terminal escapes and other control characters
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# patterns of values that become part of a path, an address or a line of a file
PATH = r"(/(?!\.\.(/|$))[\w.+@%=,~-]*)*"
NAME = r"[\w+-][\w.+-]*|"
FORMS = {
    "addresses": r"[0-9A-Fa-f:.]*",
    "cpu_flags": r"\w+",
    # numbers have few digits, so that a range cannot be huge
    "cpus": r"(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?",
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
    "rank_user_origin": "own|other|directory|",
    "python": NAME,
    "rdma_libraries": NAME,
    "socket_cpus": r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*",
    "stacks": NAME,
    "tcmalloc": PATH,
    "version": NAME,  # of a Python
}


def known_facts(
    answer: Any, schema: type[Any] = HostFactsSchema
) -> tuple[dict[str, Any], list[str]]:
    """Return the facts in a response that the schema defines, and errors about invalid facts.

    >>> known_facts({"hostname": 3, "more": 1})[0]
    {'hostname': 3}
    """
    if not isinstance(answer, dict):
        return {}, [f"its facts must be a mapping, got {_shown(answer)}"]
    types = get_type_hints(schema)
    missing = [f"{name}{MISSING}" for name in types if name not in answer]
    found = {name: value for name, value in answer.items() if name in types}
    wrong = [said for name, value in found.items() for said in _wrong(name, value, types[name])]
    if all(said.endswith(MISSING) for said in wrong):
        wrong += _wrong_cores(found)
    return found, missing + wrong


def _wrong_cores(facts: dict[str, Any]) -> list[str]:
    """Return errors about facts of the CPUs that contradict each other."""
    nodes = facts.get("numa", [])
    if not {"numa", "cores", "threads"} <= facts.keys():
        return []  # facts that are missing or have a wrong type are reported elsewhere
    if any({"cores", "cpus"} - set(one) for one in nodes):
        return []
    here = [(node["cores"], number_list(node["cpus"])) for node in nodes]
    cpus: set[int] = set().union(*(numbers for _, numbers in here))
    wrong = [(cores, len(numbers)) for cores, numbers in here if cores != len(numbers)]
    quota = facts.get("cpu_quota")
    if quota == 0:
        return ["cpu_quota is 0, which allows nothing; without a quota it is null"]
    within = len(cpus) if quota is None else min(len(cpus), whole_cores(quota))
    if facts["cores"] != within or not cpus:
        wrong = [(facts["cores"], len(cpus))]
    if wrong:
        limit = "" if quota is None else f" with a cpu_quota of {quota:g}"
        return [f"cores is {wrong[0][0]}, but there are {wrong[0][1]} CPUs{limit}"]
    numbers = [node["node"] for node in nodes if "node" in node]
    said = [f"node {one} is listed twice" for one in {*numbers} if numbers.count(one) > 1]
    if facts["threads"] < len(cpus):
        said.append(f"threads is {facts['threads']}, but there are {len(cpus)} cores")
    texts = [text for node in nodes for text in node.get("socket_cpus", {}).values()]
    if texts and (without := cpus - number_list(",".join(texts))):
        said.append(f"socket_cpus lacks CPUs {','.join(ranges(without))}")
    if any(len(node.get("distances") or nodes) != len(nodes) for node in nodes):
        said.append(f"a node does not have {len(nodes)} distances")
    return said + _wrong_counts(facts, nodes) + _wrong_near(nodes)


def _wrong_counts(facts: dict[str, Any], nodes: list[dict[str, Any]]) -> list[str]:
    """Return errors about counts of nodes and sockets that do not match the NUMA nodes."""
    said = []
    having = sum(node["cores"] > 0 for node in nodes)
    count = min(having, facts["cores"])  # the number of cores that a quota allows
    if facts.get("numa_nodes", count) != count:
        said.append(f"numa_nodes is {facts['numa_nodes']}, but {having} nodes have cores")
    named = {socket for node in nodes for socket in node.get("socket_cpus", {})}
    # facts of an older setup lack socket_cpus; then, only 0 sockets are an error
    sockets = facts.get("sockets", 1)
    if named and sockets != len(named):
        said.append(f"sockets is {sockets}, but socket_cpus lists {len(named)}")
    elif sockets == 0:
        said.append("sockets is 0")
    return said


def _wrong_near(nodes: list[dict[str, Any]]) -> list[str]:
    """Return errors about NUMA nodes whose nearest node is missing or lacks the same resource."""
    known = {node["node"]: node for node in nodes if "node" in node}
    said = []
    for number, node in known.items():
        near = node.get("near")
        if near is None:
            continue
        lacks = "memory_bytes" if node["cores"] else "cores"
        if near not in known:
            said.append(f"near of node {number} is {near}, which is not a node of the host")
        elif not known[near].get(lacks, 1):
            said.append(f"near of node {number} is {near}, which has no {lacks} either")
    return said


def _wrong(name: str, value: Any, kind: Any) -> list[str]:
    """Return errors about the type and form of a value and its elements."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
        if value is None:
            return []
    if kind is Any:
        return []
    of = list if get_origin(kind) is tuple else get_origin(kind)
    plain = of or (dict if is_dataclass(kind) else str if kind is Lines else kind)
    value = list(value) if isinstance(value, tuple) else value
    # bool is an int in Python
    right = isinstance(value, (int, float) if plain is float else plain)
    if not right or isinstance(value, bool) != (plain is bool):
        return [f"{name} must be of type {plain.__name__}, got {_shown(value)}"]
    if plain is list:
        inner, *_ = get_args(kind)
        return [said for one in value for said in _wrong(name, one, inner)]
    if of is dict:
        keys, inner = get_args(kind)
        pairs = [(name, key, keys) for key in value]
        pairs += [(name, one, inner) for one in value.values()]
        return [said for pair in pairs for said in _wrong(*pair)]
    if plain is dict:
        return known_facts(value, kind)[1]
    least = -MOST_NUMBER if name in SIGNED else 0
    if plain in (int, float) and not (least <= value < MOST_NUMBER and math.isfinite(value)):
        return [f"{name} is {_shown(value)}"]
    free = plain is not str or kind is Lines
    if not free and (CONTROL.search(value) or not re.fullmatch(FORMS.get(name, ".*"), value)):
        return [f"{name} is {_shown(value)}"]
    return []


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
