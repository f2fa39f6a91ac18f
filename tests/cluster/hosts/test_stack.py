"""The stack on the hosts: its packages and their origin, another stack, and the rollback."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.brought_python import VERSION
from tests.cluster.cluster import MESH, PREFIX, STACK, Cluster
from tests.cluster.control import ADDRESS, HEAD, NAMES, OTHER, SECONDS, Completed
from tests.programs import ROOT

PAIR = (HEAD, OTHER)
STAGES = ("--tags", "preflight,stack,verify")  # the other stages know of three hosts


def test_the_programs_of_others_agree_about_the_stack(cluster: Cluster) -> None:
    control = cluster.control
    for name in NAMES:
        assert control.as_ranks(name, f"{STACK}/bin/pip check").stdout.strip() == (
            "No broken requirements found."
        )
        assert control.as_ranks(name, f"touch {STACK}/x").returncode != 0, "ranks can write it"
    links = control.shell(HEAD, f"ldd {STACK}/lib/python{VERSION}/site-packages/torch/lib/*.so")
    assert "libc10.so => " in links
    assert "not found" not in links
    library = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    assert library in control.shell(OTHER, f"LD_PRELOAD={library} ldd /bin/true")
    limits = control.shell(OTHER, "cat /etc/security/limits.d/ftcluster.conf")
    assert re.search(r"^ftcluster\s+-\s+nofile\s+65536$", limits, re.MULTILINE), limits
    launch = (
        f"PATH={STACK}/bin:$PATH I_MPI_HYDRA_IFACE=eth0 mpirun -bootstrap ssh -bootstrap-exec-args "
        f"'-F {MESH}/ssh_config' -hosts {','.join(ADDRESS.values())} -ppn 1 -n 3 hostname"
    )
    assert sorted(control.as_ranks(HEAD, launch).stdout.split()) == list(NAMES)


@pytest.mark.long
def test_a_wheel_with_another_hash_than_the_locks_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, stacks = cluster.control, own_stacks(tmp_path)
    lock = stacks / "native.txt"
    wrong = re.sub(r"(dill==\S+ \\\n    --hash=sha256:)\w{8}", r"\g<1>00000000", lock.read_text())
    assert wrong != lock.read_text()
    lock.write_text(wrong)
    before = control.snapshots()
    options = ("--tags", "stack", "-e", f"torch_stack_folder={stacks}")
    done = control.run("setup", cluster.inventory, *options)
    assert done.returncode == 1
    assert re.search(r"dill-\S+\.whl has the sha256 \w+", done.stderr), done.stderr
    assert control.snapshots() == before


def own_stacks(folder: Path) -> Path:
    """Write a folder with the role's stacks and another lock for the default stack."""
    copy = folder / "stacks"
    shutil.copytree(ROOT / "roles/torch_stack/files", copy)
    with (copy / "native.txt").open("a") as lock:
        lock.write("# another one\n")
    return copy


# `ftcluster bundle` for the stacks in a folder instead of the installed stacks
BUNDLE = """
import sys
from pathlib import Path
from ftcluster.cli import main
from ftcluster.operations.setup import bundle
folder = Path(sys.argv.pop(1))
bundle.collection = lambda: folder
sys.exit(main.main())
"""


def write_bundle(cluster: Cluster, folder: Path) -> tuple[str, str]:
    """Write a collection with another stack in `folder`; return its bundle and a damaged bundle."""
    files = folder / "roles/torch_stack/files"
    files.parent.mkdir(parents=True)
    own_stacks(folder).rename(files)
    good, damaged = folder / "native.ftbundle", folder / "damaged.ftbundle"
    options = ("bundle", "-o", str(good), "--python", VERSION, "--glibc", "2.41", "--json")
    made = cluster.control.ansible("python", "-c", BUNDLE, str(folder), *options)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["stack"] == "native"
    damaged.write_bytes(good.read_bytes()[:-4_000_000])
    return str(good), str(damaged)


@pytest.mark.long
def test_another_stack_from_a_bundle_becomes_current_on_all_hosts_or_on_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Install a bundle although a control node is killed and a host loses power.

    The hosts have no access to other networks. Two of the hosts form a separate cluster, because
    each host costs an installation.
    """
    control, bed = cluster.control, cluster.control.bed
    pair = control.inventory("pair.ini", PAIR)
    bundle, damaged = write_bundle(cluster, tmp_path)
    newer = (pair, "-e", f"torch_stack_folder={tmp_path}/roles/torch_stack/files")
    # the other state folder remembers three hosts
    apart = {"XDG_STATE_HOME": str(tmp_path / "state")}
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache"),
    } | apart  # fmt: skip

    def setup(*options: str) -> Completed:
        return control.run("setup", *newer, *options, **nowhere)

    def start_stack(*more: str) -> "subprocess.Popen[str]":
        options = ("--bundle", bundle, "--tags", "stack,verify", *more)
        process = control.start("setup", *newer, *options, **nowhere)
        assert process.stderr is not None
        assert any(line.startswith("stack:") for line in process.stderr)
        return process

    def current() -> set[str]:
        return {control.shell(name, f"readlink {STACK}").strip() for name in PAIR}

    def installed(host: str) -> int:
        return control.shell(host, f"ls -A {PREFIX}/stacks").count("native-")

    def close(name: str) -> None:
        control.shell(name, "ip route del default")
        assert "unreachable" in bed.exec_(name, "ip", "route", "get", "192.0.2.1").stderr

    before = current()
    alone = control.run("setup", pair, "--rollback", **apart)
    assert alone.returncode == 1
    assert "there is no previous stack in /opt/ftcluster" in alone.stderr
    try:
        for name in PAIR:
            close(name)
        without = setup("--tags", "stack")
        assert without.returncode == 1
        assert f"cannot download the wheels for Python {VERSION}" in without.stderr
        assert "ftcluster setup --bundle FILE" in without.stderr
        refused = setup("--bundle", damaged, *STAGES)
        assert refused.returncode == 1
        assert f"{damaged} is damaged" in refused.stderr
        assert "nothing was changed" in refused.stderr

        killed = start_stack("--limit", HEAD)  # processes on a host may end later
        time.sleep(3)  # while the wheels are being sent
        killed.kill()
        killed.communicate()
        failing = start_stack()
        bed.kill(OTHER)
        try:
            _, said = failing.communicate(timeout=SECONDS)
        finally:
            bed.boot(OTHER)
            close(OTHER)  # the restarted host has a new virtual cable
        assert failing.returncode == 1, said
        assert re.search(rf"^  {OTHER}: .*ssh", said, re.MULTILINE), said
        assert f"stays in use on every host, because {OTHER} failed" in said
        assert current() == before
        mended = setup("--bundle", bundle, *STAGES)
        assert mended.returncode == 0, mended.stderr
        assert "mpirun reached 2 hosts with the same" in mended.stdout
        assert current() & before == set()
        assert len(current()) == 1
        for name in PAIR:
            assert installed(name) == 2, "what was not finished is still there"
            checked = control.as_ranks(name, f"{STACK}/bin/pip check")
            assert checked.stdout.strip() == "No broken requirements found."
    finally:
        for name in PAIR:
            control.shell(name, "ip route replace default via 198.18.0.1")
    back = control.run("setup", pair, "--rollback", **apart)
    assert back.returncode == 0, back.stderr
    assert "2 hosts back on the previous stack" in back.stdout
    assert current() == before
    for name in PAIR:
        control.shell(name, f"rm {PREFIX}/previous")
    pruned = control.run("setup", pair, "--prune", *STAGES, **apart)
    assert pruned.returncode == 0, pruned.stderr
    assert {installed(name) for name in PAIR} == {1}
    assert current() == before
