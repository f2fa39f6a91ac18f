import json
import os
import subprocess
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory, read_inventory
from ftcluster.ansible.processes import is_running
from ftcluster.ansible.programs import program
from ftcluster.ansible.settings import ansible_environment
from ftcluster.errors import InventoryError, UsageError

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


# --- selecting the cluster's hosts


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


def test_what_names_no_host_is_refused(company: Path) -> None:
    found = error_of(company, "--extra-vars", "ftcluster_hosts=xenos")
    assert "the inventory's groups are databases, web, xeons" in found
    found = error_of(company, "--limit", "xenos")
    assert "--limit xenos selects no host of the cluster" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[web:vars]\nftcluster_hosts=web\n[xeons:vars]\nftcluster_hosts=x1\n",
            'sets ftcluster_hosts to several values: "web", "x1"',
        ),
        ("[all:vars]\nftcluster_hosts=['x1']\n", "must be a pattern"),
        ("[all:vars]\nftcluster_hosts={{ groups.xeons[0] }}\n", "must be a pattern"),
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


# --- several inventories, folders, scripts


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


def test_missing_and_empty(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    assert "does not exist" in error_of(path)
    path.write_text("# nobody\n")
    assert "contains no host" in error_of(path)


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


def test_a_syntax_error_in_yaml_has_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("all:\n  hosts:\n   a: {\n")
    assert "inventory.yml:4: " in error_of(path)


def test_a_host_is_not_called_what_is_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    names = ["a:b", "all:!b", "!b", "n*", "~n.*", "&n", "a b", "-e"]
    path.write_text(json.dumps({"all": {"hosts": {name: {} for name in [*names, "good"]}}}))
    listed = ", ".join(map(ascii, names))
    assert f"{listed}: names of hosts may contain only letters, digits" in error_of(path)


def test_names_of_hosts(tmp_path: Path) -> None:
    names = ["node-1.example.org", "node_2", "10.0.0.1", "fe80::1", "knöten"]
    path = tmp_path / "inventory.yml"
    path.write_text(json.dumps({"all": {"hosts": {name: {} for name in names}}}))
    assert read(path).hosts == tuple(names)


# --- inventories that cannot be read


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo oops >&2; exit 3", "non-zero exit code 3\n  its error output: oops"),
        ("echo hello", "it printed no JSON\n  check its output: "),
    ],
)
def test_a_script_that_fails(tmp_path: Path, script: str, problem: str) -> None:
    path = tmp_path / "inventory.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    assert problem in error_of(path)


FAKE_CLOUD = '''
import os

from ansible.errors import AnsibleError
from ansible.plugins.inventory import BaseInventoryPlugin

DOCUMENTATION = """
name: fakecloud
short_description: x
options: {plugin: {required: true}, fails: {type: str}}
"""

class InventoryModule(BaseInventoryPlugin):
    NAME = "fakecloud"

    def verify_file(self, path):
        return path.endswith("fakecloud.yml")

    def parse(self, inventory, loader, path, cache=True):
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        why = self.get_option("fails")
        if why == "chatters":
            print("3 machines found")
        elif why == "is killed":
            os.kill(os.getpid(), 9)
        elif why:
            raise OSError(why) if "timed" in why else AnsibleError(why)
        self.display.warning("no project of this account has a machine")
'''
STRICT = "plugin: ansible.builtin.constructed\nstrict: true\ngroups: {a: nosuchvar == 1}\n"
NO_CREDENTIALS = "Insufficient credentials found: no AWS profile and no access key"
TIMED_OUT = "HTTPSConnectionPool(host=ec2, port=443): Read timed out."
NO_COLLECTION = (
    "the plugin amazon.aws.aws_ec2 is not installed here: No module named "
    "'ansible_collections.amazon'\n  install it: ansible-galaxy collection install amazon.aws"
)
KILLED = "ansible-inventory ended with exit code -9\n  for details: ansible-inventory -i "
NONE = (
    "contains no host\n  fakecloud returned no hosts: check filters, regions and account; "
    "Ansible reports: no project of this account has a machine"
)
OTHER_NAME = (
    "the plugin fakecloud does not accept a file with this name\n  to see which names it accepts: "
    "ansible-doc -t inventory fakecloud"
)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.aws_ec2.yml", "plugin: amazon.aws.aws_ec2\nregions: [eu-west-1]\n", NO_COLLECTION),
        ("fakecloud.yml", f"plugin: fakecloud\nfails: '{NO_CREDENTIALS}'\n", NO_CREDENTIALS),
        ("fakecloud.yml", f"plugin: fakecloud\nfails: '{TIMED_OUT}'\n", TIMED_OUT),
        ("fakecloud.yml", "plugin: fakecloud\n", NONE),
        ("folder/fakecloud.yml", "plugin: fakecloud\n", NONE),
        ("fakecloud.yml", "plugin: fakecloud\nfails: is killed\n", KILLED),
        ("cloud.yml", "plugin: fakecloud\n", OTHER_NAME),
        ("fakecloud.yml", "plugin: fakecloud\nfails: {\n", "fakecloud.yml:3: "),
        ("list.yml", "all: {hosts: [a]}\n", 'Invalid "hosts" entry for "all" group'),
        ("kubespray/credentials", "[kube]\nn1 foo\n", "credentials:2: Expected key=value host"),
    ],
)
def test_the_reason_is_that_of_the_plugin_which_a_file_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    write(tmp_path, {name: text, "plugins/fakecloud.py": FAKE_CLOUD})
    monkeypatch.setenv("ANSIBLE_INVENTORY_PLUGINS", str(tmp_path / "plugins"))
    path = tmp_path / name
    path.chmod(0o755)  # some file systems make all files executable
    read_at = path.parent if "/" in name else path
    error = error_of(read_at)
    assert said in error
    assert str(read_at) in error.splitlines()[0]


def test_what_a_plugin_prints_is_no_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {
        "fakecloud.yml": "plugin: fakecloud\nfails: chatters\n",
        "plugins/fakecloud.py": FAKE_CLOUD,
    })  # fmt: skip
    monkeypatch.setenv("ANSIBLE_INVENTORY_PLUGINS", str(tmp_path / "plugins"))
    error = error_of(tmp_path / "fakecloud.yml")
    assert "must print JSON, but printed '3 machines found" in error
    assert "for details: ansible-inventory -i " in error


def test_of_several_the_wrong_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"h.ini": "h1\n", "strict.yml": STRICT})
    with pytest.raises(InventoryError) as caught:
        read_inventory([tmp_path / "h.ini", tmp_path / "strict.yml"])
    assert "Could not add host h1 to group a: " in str(caught.value)
    assert f"{tmp_path}/strict.yml: " in str(caught.value)
    assert "h.ini" not in str(caught.value)


def test_what_never_answers_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cloud.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr("ftcluster.ansible.inventory.TIME_LIMIT_SECONDS", 1.5)
    assert "cloud.sh: ansible-inventory did not finish within 1.5 s" in error_of(script)
    pid = tmp_path / "pid"
    assert not pid.exists() or not is_running(int(pid.read_text()))


def test_a_vault_without_its_password(tmp_path: Path) -> None:
    variables = tmp_path / "group_vars/all.yml"
    write(tmp_path, {"h.ini": "h1\n", "pw": "secret\n", "group_vars/all.yml": "a: 1\n"})
    vault = [program("ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "pw")]
    subprocess.run([*vault, str(variables)], check=True, capture_output=True)
    error = error_of(tmp_path / "h.ini")
    assert "h.ini: Attempting to decrypt but no vault secrets" in error
    assert "pass -J to type the vault password" in error
    given = read(tmp_path / "h.ini", "--vault-password-file", str(tmp_path / "pw"))
    assert given.hosts == ("h1",)
    (tmp_path / "other").write_text("another\n")
    wrong = error_of(tmp_path / "h.ini", "--vault-password-file", str(tmp_path / "other"))
    assert "Decryption failed" in wrong
    assert "pass -J to type the vault password" in wrong
    subprocess.run([*vault, str(tmp_path / "h.ini")], check=True, capture_output=True)
    whole = error_of(tmp_path / "h.ini")  # no host of this inventory is known
    assert "h.ini: Attempting to decrypt" in whole
    assert "pass -J to type the vault password" in whole


@pytest.mark.parametrize("name", ["C", "xx_YY.UTF-8", "en_US.ISO-8859-1"])
def test_a_locale_that_ansible_does_not_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "inventory.ini").write_text("knöten\n")
    monkeypatch.setenv("LC_ALL", name)
    assert read(tmp_path / "inventory.ini").hosts == ("knöten",)
    assert ansible_environment()["LC_ALL"] == "C.UTF-8"


def test_a_list_of_hosts_is_no_file() -> None:
    assert "write the hosts into a file, one per line" in error_of(Path("m1,m2,"))


@pytest.mark.parametrize(
    ("name", "encoding"), [("h.ini", "utf-8-sig"), ("h.ini", "utf-16"), ("h.yml", "utf-16")]
)
def test_marks_that_windows_editors_write(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    text = "all: {hosts: {h1: }}\n" if name == "h.yml" else "h1\r\n"
    path.write_bytes(text.encode(encoding))
    assert f"{path} begins with a byte order mark\n  save it as UTF-8" in error_of(path)
    path.write_bytes(text.encode())
    assert read(path).hosts == ("h1",)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("--limit", "@gone.retry", "--limit @gone.retry: no such file"),
        ("--extra-vars", "@gone.yml", "--extra-vars @gone.yml: no such file"),
        ("--extra-vars", "{secret: 1", "--extra-vars: invalid JSON: "),
        ("--extra-vars", '["secret"', "--extra-vars: invalid JSON: "),
        ("--forks", "0", "--forks must be a whole number of at least 1, got '0'"),
        ("--forks", "many", "--forks must be a whole number of at least 1, got 'many'"),
    ],
)
def test_what_is_wrong_with_an_option_is_not_the_inventorys(
    company: Path, name: str, value: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(company, "--limit", "x1", name, value)
    assert caught.value.message.startswith(said)
    assert "secret" not in str(caught.value)


def test_values_of_options_as_ansible_takes_them(company: Path, tmp_path: Path) -> None:
    (tmp_path / "x.retry").write_text("x1\n")
    (tmp_path / "x.yml").write_text("ftcluster_hosts: xeons\n")
    found = read(company, "--extra-vars", f"@{tmp_path}/x.yml", "--limit", f"@{tmp_path}/x.retry")
    assert (found.cluster, found.hosts) == (("x3", "x1", "x2"), ("x1",))


def test_what_is_no_inventory(tmp_path: Path) -> None:
    assert "Ansible recognizes no inventory in it" in error_of(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert f"{tmp_path}/pipe is a pipe, but Ansible must read" in error_of(tmp_path / "pipe")


def test_what_a_folder_of_playbooks_has_beside_its_inventory(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text("- hosts: all\n  tasks: []\n")
    found = error_of(tmp_path)
    assert found.startswith(f"{tmp_path}/site.yml is not an inventory: its top level must map")
    assert "_Ansible" not in found


def test_scripts_that_may_not_be_executed_or_give_no_host(tmp_path: Path) -> None:
    script = tmp_path / "cloud"
    script.write_text("#!/bin/sh\necho '{}'\n")
    script.chmod(0o644)
    assert f"{script} is a script that is not executable\n  chmod +x" in error_of(script)
    script.chmod(0o755)
    assert f"contains no host\n  check the script's output: {script} --list" in error_of(script)


def test_groups_of_no_hosts(tmp_path: Path) -> None:
    path = tmp_path / "groups.yml"
    path.write_text("plugin: ansible.builtin.constructed\ngroups: {a: true}\n")
    assert "constructed only groups hosts of other inventories" in error_of(path)


def test_a_group_without_its_bracket(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("a\n[web\nnode1\n")
    found = error_of(path)
    assert f"{path}:2: the name of a group has no closing ]\n  the line is: [web" in found


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
