import json
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory, read_inventory
from ftcluster.errors import InventoryError

COMPANY = """
[databases]
db1
[web]
web1
[xeons]
x3
x1
x2
"""


def read(path: Path, *options: str, remembered: str = "") -> Inventory:
    return read_inventory((path,), options, remembered)


def error_of(path: Path, *options: str) -> str:
    with pytest.raises(InventoryError) as caught:
        read(path, *options)
    return f"{caught.value} {caught.value.hint}"


@pytest.fixture
def company(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.ini"
    path.write_text(COMPANY)
    return path


def test_hosts_in_order_with_the_head_group_first(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("[nodes]\nn[1:3]\n[head]\nn2\n")
    assert read(path).hosts == ("n2", "n1", "n3")
    path.write_text("[nodes]\nn[1:3]\n")
    assert read(path).head == "n1"


# --- only the hosts that are meant


def test_all_hosts_unless_a_pattern_says_which(company: Path) -> None:
    found = read(company)
    assert found.hosts == found.cluster == ("db1", "web1", "x3", "x1", "x2")
    assert found.pattern == ""
    pattern = "xeons:!x1"
    given = read(company, "--extra-vars", json.dumps({"ftcluster_hosts": pattern}))
    assert given.hosts == given.cluster == ("x3", "x2")
    assert given.pattern == pattern
    assert read(company, remembered=pattern) == given


def test_the_inventory_says_which_and_the_head_is_one_of_them(company: Path) -> None:
    company.write_text(COMPANY + "[head]\ndb1\nx2\n[xeons:vars]\nftcluster_hosts=xeons\n")
    assert read(company, remembered="web").cluster == ("x2", "x3", "x1")
    assert read(company, "--extra-vars", "ftcluster_hosts=web").cluster == ("web1",)


def test_a_limit_leaves_some_of_them_and_the_same_head(company: Path) -> None:
    found = read(company, "--extra-vars", "ftcluster_hosts=xeons", "--limit", "x1,web1")
    assert found.hosts == ("x1",)
    assert (found.cluster, found.head) == (("x3", "x1", "x2"), "x3")
    # what names no host is refused
    said = error_of(company, "--extra-vars", "ftcluster_hosts=xenos")
    assert "its groups are databases, web, xeons" in said
    said = error_of(company, "--limit", "xenos")
    assert "--limit xenos leaves no host of the cluster" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[web:vars]\nftcluster_hosts=web\n[xeons:vars]\nftcluster_hosts=x1\n",
            'several ftcluster_hosts: "web", "x1"',
        ),
        ("[all:vars]\nftcluster_hosts=['x1']\n", "not a pattern"),
        ("[all:vars]\nftcluster_hosts={{ groups.xeons[0] }}\n", "not a pattern"),
    ],
)
def test_what_is_not_one_pattern_is_refused(company: Path, text: str, words: str) -> None:
    company.write_text(COMPANY + text)
    assert words in error_of(company)


ONE_CLUSTER = {
    "no group": "x1\nx2\n",
    "one group": "[nodes]\nx1\nx2\n",
    "with a head": "[head]\nx1\n[nodes]\nx2\nx3\n",
    "with a head that is a node": "[head]\nx1\n[nodes]\nx1\nx2\n",
    "groups of all": "[aws_ec2]\nx1\nx2\n[type_c7i]\nx1\nx2\n[head]\nx1\n[tag_role_head]\nx1\n",
    "variables only": "[nodes]\nx1\nx2\n[web:vars]\na=1\n[web]\n",
}
SEVERAL = {
    "a company": COMPANY,
    "one parent": COMPANY + "[production:children]\ndatabases\nweb\nxeons\n",
    "a relay beside the group": "relay\n[xeons]\nx1\nx2\n",
    "kubespray": "[kube_control_plane]\nn1\n[etcd]\nn1\n[kube_node]\nn2\nn3\n"
    "[k8s_cluster:children]\nkube_control_plane\nkube_node\n",
    "slurm": "[controller]\nc1\n[compute]\nn[1:3]\n[login]\nl1\n",
    "tags of a cloud": "[aws_ec2]\na\nb\nc\n[tag_role_db]\na\n[tag_role_train]\nb\nc\n",
    "a head among others": COMPANY + "[head]\nx1\n",
}


@pytest.mark.parametrize("text", ONE_CLUSTER.values(), ids=ONE_CLUSTER)
def test_groups_that_all_hosts_have_in_common_are_one_cluster(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text(text)
    assert read(path).groups == {}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL)
def test_groups_with_a_part_of_the_hosts_leave_it_open(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text(text)
    found = read(path)
    assert len(found.groups) > 1
    assert {name for one in found.groups.values() for name in one} == set(found.cluster)
    assert read(path, "--extra-vars", "ftcluster_hosts=all").groups == {}


def test_a_group_of_our_name_is_the_cluster(company: Path) -> None:
    company.write_text(COMPANY + "[ftcluster:children]\nxeons\n[head]\nweb1\nx2\n")
    found = read(company)
    assert (found.pattern, found.cluster, found.groups) == ("ftcluster", ("x2", "x3", "x1"), {})
    assert read(company, remembered="web").cluster == ("web1",)


# --- several, folders, scripts


def test_several_inventories_are_read_in_their_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first.ini", tmp_path / "second.ini"
    first.write_text("[xeons]\nx2\n[all:vars]\nftcluster_hosts=nobody\n")
    second.write_text("[xeons]\nx1\n[web]\nw\n[all:vars]\nftcluster_hosts=xeons\n")
    found = read_inventory((first, second))
    assert (found.paths, found.cluster) == ((first, second), ("x2", "x1"))


def test_a_folder_with_a_script_and_variables_beside_it(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("ftcluster_hosts: xeons\n")
    (tmp_path / "static.ini").write_text("[web]\nweb1\n")
    script = tmp_path / "cloud.sh"
    listing = {"xeons": {"hosts": ["x2", "x1"]}, "_meta": {"hostvars": {}}}
    script.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(listing)}\nEOF\n")
    script.chmod(0o755)
    assert read(tmp_path).cluster == ("x2", "x1")


# --- errors


def test_what_is_missing_empty_or_broken_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    assert "does not exist" in error_of(path)
    path.write_text("# nobody\n")
    assert "has no host" in error_of(path)
    # a group without its bracket
    path.write_text("a\n[web\nnode1\n")
    found = error_of(path)
    assert f"{path}:2: the name of a group lacks its ]\n  the line is: [web" in found
    # YAML
    path = tmp_path / "inventory.yml"
    path.write_text("all:\n  hosts:\n   a: {\n")
    assert "inventory.yml:4: " in error_of(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[nodes]\nn1\nn2 foo bar=1\n", 3, "Expected key=value host variable assignment, got: foo"),
        ("n1\n\n[nodes\nn2\n", 3, ""),
        ("n1\n[nodes:sons]\nn2\n", 2, "unknown type: sons"),
        ("n1\n[a:children]\nnobody\n", 3, ""),
    ],
)
def test_a_syntax_error_has_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    good, bad = tmp_path / "good.ini", tmp_path / "bad.ini"
    good.write_text("n9\n")
    bad.write_text(text)
    with pytest.raises(InventoryError, match=f"^{bad}:{line}: .*{words}"):
        read_inventory((good, bad))


def test_a_host_is_not_called_what_is_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    names = ["a:b", "all:!b", "!b", "n*", "~n.*", "&n", "a b", "-e"]
    path.write_text(json.dumps({"all": {"hosts": {name: {} for name in [*names, "good"]}}}))
    listed = ", ".join(map(ascii, names))
    assert f"{listed}: a host's name has letters, digits" in error_of(path)
    # other letters are allowed
    names = ["node-1.example.org", "node_2", "10.0.0.1", "fe80::1", "knöten"]
    path.write_text(json.dumps({"all": {"hosts": {name: {} for name in names}}}))
    assert read(path).hosts == tuple(names)


# --- inventories that cannot be read


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo oops >&2; exit 3", "non-zero exit code 3\n  it says: oops"),
        ("echo hello", "it printed no JSON\n  look at its output: "),
    ],
)
def test_a_script_that_fails(tmp_path: Path, script: str, problem: str) -> None:
    path = tmp_path / "inventory.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    assert problem in error_of(path)


def test_variables_by_which_host_keys_are_not_checked_are_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(
        "a ansible_host_key_checking=False\n"
        "b ansible_ssh_common_args='-o StrictHostKeyChecking=no -o ConnectTimeout=5'\n"
        "c ansible_ssh_common_args='-o StrictHostKeyChecking=accept-new'\n"
        "d ansible_ssh_host_key_checking=yes\n"
    )
    assert read_inventory((path,)).unchecked == (
        "ansible_host_key_checking=False (a)",
        "StrictHostKeyChecking=no in ansible_ssh_common_args (b)",
    )
