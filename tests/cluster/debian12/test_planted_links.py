"""Links that the training account plants before root's next setup."""

import json

from tests.cluster.cluster import PREFIX, Cluster
from tests.cluster.control import OTHER
from tests.cluster.debian12.canary import canary

HOME = "/var/lib/ftcluster"
FOLDERS = "runs models data scripts layers cache mesh metrics"
EXCHANGE = f"""
for name in .setup .setup.new current stacks {FOLDERS}; do
  ! ln -sfnT {{0}} {PREFIX}/$name || echo $name
  ! mv -T {PREFIX}/$name {HOME}/$name || echo $name
done 2> /dev/null
"""
PLANT = f"""
set -e
mv {HOME}/.ssh {HOME}/mine && ln -s {{0}} {HOME}/.ssh
for name in {FOLDERS}; do
  ln -s {{0}} {PREFIX}/$name/planted
  ln -s {{0}}/file {PREFIX}/$name/planted-file
done
"""
BACK = f"rm {HOME}/.ssh && mv {HOME}/mine {HOME}/.ssh"


def test_root_follows_no_link_of_the_account(cluster: Cluster) -> None:
    control = cluster.control
    again = ("setup", cluster.inventory, "--limit", OTHER, "--tags", "system", "--json")
    with canary(control, OTHER) as target:
        assert control.as_ranks(OTHER, EXCHANGE.format(target)).stdout == ""
        assert control.as_ranks(OTHER, PLANT.format(target)).returncode == 0
        try:
            done = control.run(*again)
            assert done.returncode == 1, done.stderr
            assert f"{HOME}/.ssh: is a link to {target}" in done.stderr
        finally:
            control.shell(OTHER, BACK)
        # links in folders of the account concern only the account
        done = control.run(*again)
        control.shell(OTHER, f"rm {PREFIX}/*/planted*")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["hosts"][OTHER]["changed"] == 0


def test_root_installs_nothing_where_the_account_could_exchange_it(cluster: Cluster) -> None:
    done = cluster.control.run("setup", cluster.inventory, "--limit", OTHER, "-e",
                               f"ftcluster_prefix={HOME}/cluster")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"{HOME}: ftcluster may write here" in done.stderr, done.stderr
    assert "nothing was changed" in done.stderr
