"""The stack on the hosts: what is installed, from where, and the way to another one and back."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from tests.cluster.hosts.cluster import ADDRESS, HEAD, MESH, NAMES, OTHER, STACK, THIRD, Cluster
from tests.programs import ROOT


def test_the_programs_of_others_agree_about_the_stack(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    for name in NAMES:
        assert control.as_ranks(name, f"{STACK}/bin/pip check").stdout.strip() == (
            "No broken requirements found."
        )
        assert control.as_ranks(name, f"touch {STACK}/x").returncode != 0, "ranks can write it"
    links = bed.exec_(HEAD, "sh", "-c", f"ldd {STACK}/lib/python3.11/site-packages/torch/lib/*.so")
    assert "libc10.so => " in links.stdout
    assert "not found" not in links.stdout
    library = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    preloaded = bed.exec_(OTHER, "env", f"LD_PRELOAD={library}", "ldd", "/bin/true").stdout
    assert library in preloaded
    limits = bed.exec_(OTHER, "cat", "/etc/security/limits.d/ftcluster.conf", check=True).stdout
    assert re.search(r"^ftcluster\s+-\s+nofile\s+65536$", limits, re.MULTILINE), limits
    who = ",".join(ADDRESS.values())
    launch = (
        f"PATH={STACK}/bin:$PATH I_MPI_HYDRA_IFACE=eth0 mpirun -bootstrap ssh -bootstrap-exec-args "
        f"'-F {MESH}/ssh_config' -hosts {who} -ppn 1 -n 3 hostname"
    )
    assert sorted(control.as_ranks(HEAD, launch).stdout.split()) == list(NAMES)


def test_hosts_without_a_way_out_after_a_setup_that_was_killed(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    bed.exec_(OTHER, "sh", "-c", "rm -rf /opt/ftcluster/stacks /opt/ftcluster/current", check=True)
    bed.exec_(OTHER, "ip", "route", "del", "default", check=True)
    try:
        process = control.start("setup", cluster.inventory, "-v", "--limit", OTHER)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("stack ..."):
                time.sleep(3)  # in the middle of the wheels
                process.kill()
                break
        process.wait(60)
        done = control.run("setup", cluster.inventory)
        assert done.returncode == 0, done.stderr
        assert "3 hosts ready" in done.stdout
        stagings = bed.exec_(OTHER, "find", "/opt/ftcluster/stacks", "-maxdepth", "1").stdout
        assert stagings.count("native-") == 1, stagings
        checked = control.as_ranks(OTHER, f"{STACK}/bin/pip check")
        assert checked.stdout.strip() == "No broken requirements found."
    finally:
        bed.exec_(OTHER, "ip", "route", "add", "default", "via", "198.18.0.1")


def test_a_wheel_with_another_hash_than_the_locks_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, stacks = cluster.control, own_stacks(tmp_path)
    lock = stacks / "native.txt"
    wrong = re.sub(r"(dill==\S+ \\\n    --hash=sha256:)\w{8}", r"\g<1>00000000", lock.read_text())
    assert wrong != lock.read_text()
    lock.write_text(wrong)
    before = control.snapshot(OTHER)
    done = control.run("setup", cluster.inventory, "-e", f"torch_stack_folder={stacks}")
    assert done.returncode == 1
    assert re.search(r"dill-\S+\.whl has the sha256 \w+, which the list of versions does not allow",
                     done.stderr), done.stderr  # fmt: skip
    assert control.snapshot(OTHER) == before


def own_stacks(folder: Path) -> Path:
    """The stacks of the role, with another lock of the default one."""
    copy = folder / "stacks"
    shutil.copytree(ROOT / "roles/torch_stack/files", copy)
    with (copy / "native.txt").open("a") as lock:
        lock.write("# another one\n")
    return copy


# `ftcluster bundle`, of the stacks in a folder instead of those that are installed.
BUNDLE = """
import sys
from pathlib import Path
from ftcluster.cli import bundle, main
folder = Path(sys.argv.pop(1))
bundle.collection = lambda: folder
sys.exit(main.main())
"""


def write_bundle(cluster: Cluster, folder: Path) -> tuple[str, str]:
    """A collection with another stack in `folder`; returns its bundle, and a damaged one."""
    files = folder / "roles/torch_stack/files"
    files.parent.mkdir(parents=True)
    own_stacks(folder).rename(files)
    good, damaged = folder / "native.ftbundle", folder / "damaged.ftbundle"
    options = ("bundle", "-o", str(good), "--glibc", "2.36", "--json")
    made = cluster.control.ansible("python", "-c", BUNDLE, str(folder), *options)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["stack"] == "native"
    damaged.write_bytes(good.read_bytes()[:-4_000_000])
    return str(good), str(damaged)


def test_another_stack_from_a_bundle_becomes_current_on_all_hosts_or_on_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    bundle, damaged = write_bundle(cluster, tmp_path)
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip

    def setup(*options: str) -> "subprocess.CompletedProcess[str]":
        newer = f"torch_stack_folder={tmp_path}/roles/torch_stack/files"
        return control.run("setup", cluster.inventory, "-e", newer, *options, **nowhere)

    def current() -> set[str]:
        return {bed.exec_(name, "readlink", STACK, check=True).stdout.strip() for name in NAMES}

    def installed() -> int:
        return len(bed.exec_(HEAD, "ls", "/opt/ftcluster/stacks", check=True).stdout.split())

    def close(name: str) -> None:
        bed.exec_(name, "ip", "route", "del", "default", check=True)
        assert "unreachable" in bed.exec_(name, "ip", "route", "get", "192.0.2.1").stderr

    before = current()
    alone = control.run("setup", cluster.inventory, "--rollback")
    assert alone.returncode == 1
    assert "there is no former stack in /opt/ftcluster to go back to" in alone.stderr
    try:
        for name in NAMES:
            close(name)
        without = setup()
        assert without.returncode == 1
        assert "cannot download the wheels for Python 3.11" in without.stderr
        assert "ftcluster setup --bundle FILE" in without.stderr
        refused = setup("--bundle", damaged)
        assert refused.returncode == 1
        assert f"{damaged} is damaged or no bundle" in refused.stderr
        assert "nothing was changed" in refused.stderr
        bed.kill(THIRD)
        try:
            failed = setup("--bundle", bundle)
        finally:
            bed.boot(THIRD)
            close(THIRD)  # its cable is a new one
        assert failed.returncode == 1
        stays = f"stays in use on every host, because {THIRD} failed"
        assert stays in failed.stderr
        assert current() == before
        mended = setup("--bundle", bundle)
        assert mended.returncode == 0, mended.stderr
        assert "mpirun reached 3 hosts, the same" in mended.stdout
        assert current() & before == set()
        assert len(current()) == 1
    finally:
        for name in NAMES:
            bed.exec_(name, "ip", "route", "add", "default", "via", "198.18.0.1")
    back = control.run("setup", cluster.inventory, "--rollback")
    assert back.returncode == 0, back.stderr
    assert "3 hosts back on the former stack" in back.stdout
    assert current() == before
    for name in NAMES:
        bed.exec_(name, "rm", "/opt/ftcluster/former", check=True)
    assert installed() == 2
    pruned = control.run("setup", cluster.inventory, "--prune")
    assert pruned.returncode == 0, pruned.stderr
    assert installed() == 1
    assert current() == before
