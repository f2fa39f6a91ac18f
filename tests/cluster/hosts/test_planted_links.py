"""What the account that trains leaves behind for root to stumble over at the next setup."""

import json

from tests.cluster.hosts.canary import canary
from tests.cluster.hosts.cluster import OTHER, Cluster

PREFIX, HOME = "/opt/ftcluster", "/var/lib/ftcluster"
FOLDERS = "runs models data scripts cache mesh"


def test_root_follows_no_link_of_the_account(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    again = ("setup", cluster.inventory, "--limit", OTHER, "--tags", "system", "--json")
    with canary(cluster, OTHER) as target:
        exchange = f"""
            for name in .setup .setup.new current stacks {FOLDERS}; do
              ! ln -sfnT {target} {PREFIX}/$name || echo $name
              ! mv -T {PREFIX}/$name {HOME}/$name || echo $name
            done 2> /dev/null
        """
        assert control.as_ranks(OTHER, exchange).stdout == ""
        plant = f"""
            set -e
            mv {HOME}/.ssh {HOME}/mine && ln -s {target} {HOME}/.ssh
            for name in {FOLDERS}; do
              ln -s {target} {PREFIX}/$name/planted
              ln -s {target}/file {PREFIX}/$name/planted-file
            done
        """
        try:
            assert control.as_ranks(OTHER, plant).returncode == 0
            done = control.run(*again)
            assert done.returncode == 1, done.stderr
            assert (
                f"{OTHER}: Create its folders: {HOME}/.ssh: is a link to {target} that ftcluster "
                "may have made, so it is not followed; remove it and run this again" in done.stderr
            ), done.stderr
            back = f"rm {HOME}/.ssh && mv {HOME}/mine {HOME}/.ssh"
            assert control.as_ranks(OTHER, back).returncode == 0
            # links in the folders that are the account's are its own business
            done = control.run(*again)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["hosts"][OTHER]["changed"] == 0
        finally:
            bed.exec_(OTHER, "sh", "-c", f"rm -f {PREFIX}/*/planted*; cd {HOME}; "
                      "[ ! -d mine ] || { rm -f .ssh && mv mine .ssh; }", check=True)  # fmt: skip


def test_root_installs_nothing_where_the_account_could_exchange_it(cluster: Cluster) -> None:
    done = cluster.control.run("setup", cluster.inventory, "--limit", OTHER, "-e",
                               f"ftcluster_prefix={HOME}/cluster")  # fmt: skip
    assert done.returncode == 1, done.stderr
    refusal = f"{HOME}: ftcluster may write here, and could exchange what root installs; choose"
    assert f"{OTHER}: Stop before anything is changed: {refusal}" in done.stderr, done.stderr
    assert "nothing was changed" in done.stderr
