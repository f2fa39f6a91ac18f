"""Facts from a host are checked before a play, a plan or a command uses them."""

import copy
import math
import re
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from ansible_collections.ftcluster.cluster.plugins.modules import host_facts, mesh_head, mesh_member
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_schema import (
    HostFactsSchema,
    MeasuredFactsSchema,
)

from ftcluster.cluster import facts as planned
from tests.programs import ROOT

DOCUMENTED = yaml.safe_load(host_facts.RETURN)["facts"]["contains"]
PROMISED = get_type_hints(HostFactsSchema)
GOOD = {name: DOCUMENTED[name]["sample"] for name in PROMISED}
PREFLIGHT = ROOT / "roles/preflight/vars/main.yml"
TEMPLATE = '{{ lookup("pipe", "touch planted") }}'
FREE = {  # texts for people, which may have any characters
    "hostname", "kernel", "os", "libc", "machine_id", "cpu_model", "cpu_generation", "amx",
    "user", "pythons.path", "prefix_refused.what", "prefix_refused.hint", "services.user",
    "python_refused.what", "python_refused.hint",
    "other_clusters.user",
    "record",  # record_of parses this fact
}  # fmt: skip


def texts(value: Any, name: str = "") -> list[tuple[str, list[Any]]]:
    """Yield the texts in a fact, each with a name and its path."""
    if isinstance(value, str):
        return [(name, [])]
    if isinstance(value, dict):
        pairs = [(f"{name}.{key}".lstrip("."), key, one) for key, one in value.items()]
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
        pairs = [(name, number, one) for number, one in inner]
    return [(full, [key, *way]) for below, key, one in pairs for full, way in texts(one, below)]


def planted(way: list[Any], text: object) -> dict[str, Any]:
    """Return valid facts with one value replaced."""
    facts = copy.deepcopy(GOOD)
    place: Any = facts
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = text
    return facts


def documented(kind: Any) -> dict[str, Any]:
    """Return the form that the documentation must state for a fact of this type."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is list:
        inner = documented(get_args(kind)[0])
        return {**inner, "type": "list", "elements": inner["type"]}
    if is_dataclass(kind):
        contains = {name: documented(one) for name, one in get_type_hints(kind).items()}
        return {"type": "dict", "contains": contains}
    return {"type": kind.__name__}


def form(spec: dict[str, Any]) -> dict[str, Any]:
    """The form in the documentation, without descriptions and samples."""
    found = {key: spec[key] for key in ("type", "elements") if key in spec}
    inner = {name: form(one) for name, one in spec.get("contains", {}).items()}
    return found | ({"contains": inner} if inner else {})


def test_the_documentation_has_the_schema() -> None:
    schema = PROMISED | get_type_hints(MeasuredFactsSchema)
    assert {name: documented(kind) for name, kind in schema.items()} == {
        name: form(spec) for name, spec in DOCUMENTED.items()
    }
    assert known_facts(GOOD) == (GOOD, [])


def test_a_plan_is_made_of_facts_that_there_are() -> None:
    """The plan also gets the decisions of the role preflight."""
    decided = set(yaml.safe_load(PREFLIGHT.read_text("utf-8"))["preflight__decided"])
    schema = PROMISED.keys() | get_type_hints(MeasuredFactsSchema).keys() | decided | {"stack"}
    assert {field.name for field in fields(planned.HostFacts)} <= schema
    (numa,) = get_args(PROMISED["numa"])
    assert {one.name for one in fields(planned.NumaNode)} == {one.name for one in fields(numa)}


@pytest.mark.parametrize(("name", "way"), texts(GOOD), ids=lambda one: str(one))
def test_each_text_of_a_host(name: str, way: list[Any]) -> None:
    for text in ("a\nb", "a\x1b[2Jb", "a\x85b", "a\u2028b"):
        _, [wrong] = known_facts(planted(way, text))
        assert wrong.endswith(f" is {text!a}")
        assert "\n" not in wrong
    found, wrong_ones = known_facts(planted(way, TEMPLATE))
    if name in FREE:
        assert found == planted(way, TEMPLATE)
        assert wrong_ones == []
    elif name != "nics.name":  # an interface name has no white space
        assert len(wrong_ones) == 1


@pytest.mark.parametrize("name", PROMISED)
@pytest.mark.parametrize("value", [{"a": 1}, [["b"]], {"__ansible_type": "x"}])
def test_each_fact_is_of_its_type(name: str, value: Any) -> None:
    _, wrong = known_facts({**GOOD, name: value})
    assert wrong
    assert known_facts({key: GOOD[key] for key in GOOD if key != name})[1] == [f"{name} is missing"]


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (["memory_bytes"], 10**400), (["memory_bytes"], -1), (["cpu_quota"], math.inf),
        (["cpu_quota"], math.nan), (["cores"], 0), (["cores"], 10**6), (["numa"], []),
        (["numa", 0, "cpus"], "0-99999999"), (["numa", 0, "cpus"], "7-"),
        (["numa", 0, "cpus"], ""), (["numa", 0, "cores"], 10**6),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(way: list[Any], value: object) -> None:
    _, [wrong] = known_facts(planted(way, value))
    assert wrong.startswith((f"{way[-1]} is ", "cores is "))
    assert len(wrong) < 100


def test_cores_are_those_of_the_nodes_within_the_quota() -> None:
    cores = GOOD["cores"]

    def said(**changes: object) -> list[str]:
        return known_facts({**GOOD, "cpu_quota": None, **changes})[1]

    assert said() == []
    assert said(cores=3, cpu_quota=3.9) == []
    assert said(cores=1, cpu_quota=0.3) == []
    assert said(cores=cores - 1) == [f"cores is {cores - 1}, but there are {cores} CPUs"]
    assert said(cpu_quota=10.0) == [
        f"cores is {cores}, but there are {cores} CPUs with a cpu_quota of 10"
    ]


def test_a_node_is_there_once() -> None:
    nodes = [{**node, "distances": []} for node in GOOD["numa"]]
    count = 2 * GOOD["numa_nodes"]
    twice = known_facts({**GOOD, "numa": [*nodes, *nodes], "numa_nodes": count})[1]
    assert twice == [f"node {node['node']} is listed twice" for node in nodes]


def test_counts_of_nodes_and_sockets_are_those_of_the_nodes() -> None:
    cores = GOOD["cores"]
    node, _ = GOOD["numa"]
    half = cores // 2
    parts = [f"0-{half - 1}", f"{half}-{cores - 1}"]
    two = [
        {**node, "node": at, "cores": half, "cpus": cpus, "socket_cpus": {str(at): cpus},
         "distances": []}
        for at, cpus in enumerate(parts)
    ]  # fmt: skip
    good = {**GOOD, "cpu_quota": None, "numa": two, "numa_nodes": 2, "sockets": 2}

    def said(**changes: object) -> list[str]:
        return known_facts({**good, **changes})[1]

    assert said() == []
    assert said(cores=1, cpu_quota=1.0, numa_nodes=1) == []
    assert said(numa_nodes=1) == ["numa_nodes is 1, but 2 nodes have cores"]
    assert said(sockets=1) == ["sockets is 1, but socket_cpus lists 2"]
    assert said(sockets=0) == ["sockets is 0, but socket_cpus lists 2"]
    # facts of an older setup lack the CPUs of sockets
    old = [{**one, "socket_cpus": {}} for one in two]
    assert said(numa=old, sockets=1) == []
    assert said(numa=old, sockets=0) == ["sockets is 0"]
    assert said(cpu_quota=0) == ["cpu_quota is 0, which allows nothing; without a quota it is null"]
    assert said(cpu_quota=0.0, cores=1) == said(cpu_quota=0)


def test_the_nearest_node_is_one_that_has_what_the_node_lacks() -> None:
    node, far = ({**node, "distances": []} for node in GOOD["numa"])
    far = {**far, "node": 7}

    def said(**changes: object) -> list[str]:
        return known_facts({**GOOD, "numa": [node, {**far, **changes}]})[1]

    assert said(near=None) == said(near=node["node"]) == []
    assert said(near=9) == ["near of node 7 is 9, which is not a node of the host"]
    assert said(near=7) == ["near of node 7 is 7, which has no cores either"]
    # cores without memory use another node's memory
    without = {**node, "memory_bytes": 0}
    facts = {**GOOD, "numa": [{**without, "near": 7}, {**far, "memory_bytes": 0}]}
    assert known_facts(facts)[1] == [
        f"near of node {node['node']} is 7, which has no memory_bytes either"
    ]


@pytest.mark.parametrize("path", ["opt/x", "/a/../../etc", "/a b", "/a$(b)", "/a;b", "/a'b", "/.."])
def test_a_prefix_is_a_plain_path(path: str) -> None:
    assert known_facts({**GOOD, "prefix": path})[1] == [f"prefix is {path!a}"]


def test_what_else_a_host_says_is_left_out() -> None:
    found, wrong = known_facts({**GOOD, "rank_user": "root", "becomes": True})
    assert (found, wrong) == (GOOD, [])
    assert known_facts("x") == ({}, ["its facts must be a mapping, got 'x'"])
    # a message shows only the beginning of a long value
    _, [long] = known_facts({**GOOD, "cores": "9" * 10_000})
    assert len(long) < 100


@pytest.mark.parametrize(
    "given", [("3.11", "2.36", "../../x"), ("../3", "2.36", "x86_64"), ("3.11", "2.36\n", "x86_64")]
)
def test_wheels_are_for_no_paths(given: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match=re.escape(ascii(" ".join(given)))):
        Target(*given)


# --- the mesh: lines of ssh's files

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVhc3k="


def test_a_host_key_is_one_key(run_module: Any, tmp_path: Any) -> None:
    member = {"name": "b", "address": "10.0.0.2", "user": "u", "host_keys": [KEY]}
    given = {"folder": str(tmp_path / "mesh"), "names": ["b"]}
    for change in (
        {"host_keys": [f"{KEY}\n* {KEY}"]}, {"host_keys": [f"@cert-authority * {KEY}"]},
        {"name": "b *"}, {"address": "10.0.0.2\n  ProxyCommand touch planted"}, {"user": "u\nx"},
    ):  # fmt: skip
        found = run_module(mesh_head.main, members=[{**member, **change}], **given)
        assert found["failed"], change
        assert "invalid values for the mesh" in found["msg"]
        assert "\n" not in found["msg"]
    assert not (tmp_path / "mesh").exists()


def test_the_heads_key_is_one_key_and_keeps_its_limits(run_module: Any) -> None:
    good = f"{KEY} {mesh_member.MARK}head"
    for given in (
        {"public_key": f"{good}\n{KEY} another", "address": "10.0.0.1"},
        {"public_key": KEY, "address": "10.0.0.1"},
        {"public_key": good, "address": '*" ' + KEY + ' x"'},
        {"public_key": good, "folder": f"/mesh\n{KEY} another"},
    ):
        found = run_module(mesh_member.main, check=True, **{"folder": "/mesh", **given})
        assert found["failed"], given
        assert " of the head is invalid: " in found["msg"]
