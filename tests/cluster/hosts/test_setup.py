"""A second setup, which changes nothing, and a setup of one host."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import FEW_PAIRS, TWO, Cluster
from tests.cluster.control import HEAD, NAMES, OTHER
from tests.programs import ROOT

# a host that cannot resolve its own name, so that sudo warns; login scripts that print, one without
# a line end; and sudo's lecture
TALKS = r"""
cp -a /etc/hosts /root/hosts && sed -i "/$(hostname)/d" /etc/hosts
cp -a /home/ops/.bashrc /root/bashrc
printf 'echo 0; echo nft none; printf more' > /home/ops/.bashrc
echo 'echo 0' > /etc/profile.d/talks.sh
echo 'Defaults lecture=always' > /etc/sudoers.d/talks
"""
QUIET = """
mv /root/hosts /etc/hosts
mv /root/bashrc /home/ops/.bashrc
rm /etc/profile.d/talks.sh /etc/sudoers.d/talks
"""
# a user with the operator's key who may use sudo only to become the training account
OPERATOR = """
useradd -m -s /bin/bash ml && cp -r /home/ops/.ssh /home/ml/ && chown -R ml: /home/ml/.ssh
echo 'ml ALL=(ftcluster) NOPASSWD: ALL' > /etc/sudoers.d/ml
"""
NO_OPERATOR = """
pkill -KILL -u ml; for _ in $(seq 50); do userdel -r ml && break; sleep 0.2; done 2> /dev/null
rm /etc/sudoers.d/ml; ! getent passwd ml
"""
PLANTED = "/srv/planted"
OTHERS_ROLES = ("account", "firewall", "os_package", "preflight", "ssh_mesh", "tcmalloc",
                "tuning", "verify", "virtualenv")  # fmt: skip


def nonsense() -> dict[str, Any]:
    """Set the public variables that setup overrides to nonsense, as if for another role."""
    found: dict[str, Any] = {}
    for role in OTHERS_ROLES:
        text = (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text(encoding="utf-8")
        for name, option in yaml.safe_load(text)["argument_specs"]["main"]["options"].items():
            found[name] = {
                "list": ["9"], "dict": {"python": "9.9"}, "bool": not option.get("default"),
                "int": 7,
            }.get(option["type"], "/nowhere")  # fmt: skip
    return found | {"torch_stack_prefix": "/nowhere", "torch_stack_hosts": ["nobody"]}


def test_hosts_that_talk_and_variables_of_other_roles_change_nothing(cluster: Cluster) -> None:
    control = cluster.control
    folder = Path(cluster.inventory).parent / "group_vars"
    folder.mkdir()
    (folder / "all.yml").write_text(json.dumps(nonsense()))
    try:
        with control.changed({HEAD: (TALKS, QUIET), OTHER: (TALKS, QUIET)}):
            warned = control.bed.ssh(HEAD, "sudo id -u")
            assert "unable to resolve host" in warned.stderr, "sudo does not warn here"
            assert warned.stdout.startswith("0\nnft none\nmore"), "no login script talks"
            done = control.run("setup", "--json")  # uses the inventory of the first setup
    finally:
        (folder / "all.yml").unlink()
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    assert "root is not available here" not in done.stderr
    hosts = json.loads(done.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(NAMES, 0)


def test_setup_and_rollback_do_nothing_that_was_not_asked(cluster: Cluster) -> None:
    control = cluster.control
    config = control.folder / "ansible.cfg"
    config.write_text("[defaults]\ninventory = company.ini\n")
    try:
        for words in (("setup",), ("setup", "--rollback"), ("setup", "--check", "--limit", OTHER)):
            refused = control.run(*words)
            assert refused.returncode == 2, refused.stderr
            assert f"ftcluster setup {control.folder}/company.ini" in refused.stderr
            assert f"ftcluster setup {cluster.inventory}" in refused.stderr
            assert "preflight" not in refused.stderr
    finally:
        config.unlink()
    elsewhere = {"XDG_STATE_HOME": str(control.folder / "nobody")}
    refused = control.run("setup", **elsewhere)
    assert refused.returncode == 2
    assert "ftcluster setup localhost" in refused.stderr


def test_a_python_that_the_account_could_change_is_named_before_anything_is_changed(
    cluster: Cluster,
) -> None:
    """Name a Python that the account could change, instead of the safe one."""
    control = cluster.control
    make = f"""
    mkdir -p {PLANTED}/bin {PLANTED}/lib/python3.11
    printf '#!/bin/sh\\nid -un >> /tmp/executed-by\\n' > {PLANTED}/bin/python3.11
    chmod 0755 {PLANTED}/bin/python3.11; chown -R ftcluster {PLANTED}
    """
    python = f"ftcluster_python={PLANTED}/bin/python3.11"
    with control.changed({HEAD: (make, f"rm -r {PLANTED}")}):
        done = control.run("setup", cluster.inventory, "--limit", HEAD, "-e", python)
    assert done.returncode == 1
    assert f"{HEAD}: {python}: {PLANTED}: ftcluster may write here" in done.stderr, done.stderr
    assert "nothing was changed" in done.stderr
    assert control.shell(HEAD, "cat /tmp/executed-by 2> /dev/null || :") == ""


def test_an_operator_without_root_trains_as_the_account(cluster: Cluster, tmp_path: Path) -> None:
    control = cluster.control
    text = Path(cluster.inventory).read_text().replace("ansible_user=ops", "ansible_user=ml")
    (control.folder / "ml.ini").write_text(text)
    mine = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with control.changed(dict.fromkeys(NAMES, (OPERATOR, NO_OPERATOR))):
        refused = control.run("setup", "ml.ini", "--limit", OTHER, "--tags", "preflight", **mine)
        drained = control.run("hosts", "drain", OTHER, "--why", "memory errors")
        trained = control.run("train", "-i", "ml.ini", "quickstart", "max_steps=1", *FEW_PAIRS,
                              *TWO, "--json", **mine)  # fmt: skip
        returned = control.run("hosts", "return", OTHER)
    assert refused.returncode == 1
    assert "sudo gives the account ftcluster here, but not root" in refused.stderr
    assert trained.returncode == 0, trained.stderr
    found = json.loads(trained.stdout)
    assert found["state"] == "done"
    # hosts that another control node has drained are skipped here too
    assert (drained.returncode, returned.returncode) == (0, 0), drained.stderr + returned.stderr
    runs = {name: control.shell(name, "ls /opt/ftcluster/runs") for name in NAMES}
    assert [found["run"] in runs[name] for name in NAMES] == [True, False, True]
    assert "it is unknown whether the firewall's rules are loaded" in trained.stderr


def test_limit_touches_one_host_and_forgets_none(cluster: Cluster) -> None:
    control = cluster.control
    stages = ("--tags", "preflight,verify")  # the last stage also starts a rank on the head
    limited = control.run("setup", cluster.inventory, "--limit", OTHER, *stages, "--json")
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout)["hosts"][OTHER]["changed"] == 0
    assert HEAD not in limited.stderr.replace("changed", "")
    planned = control.run("train", "--dry-run", "--json", "--ranks-per-host", "1")
    assert json.loads(planned.stdout)["world_size"] == 3
