"""What a cluster of three Debian 12 hosts does. conftest.py says in which order the files run."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.cluster.hosts.cluster import (
    ADDRESS,
    HEAD,
    MESH,
    NAMES,
    OTHER,
    STACK,
    THIRD,
    TWO,
    Cluster,
    no_rank_is_left,
)
from tests.cluster.hosts.own_script import write_scripts
from tests.cluster.test_main_job import write_pairs
from tests.programs import ROOT, interrupt_when

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def test_a_second_run_changes_nothing(cluster: Cluster) -> None:
    again = cluster.control.run("setup", "--json")
    assert again.returncode == 0, again.stderr
    hosts = json.loads(again.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(NAMES, 0)


def test_ssh_itself_says_that_the_mesh_is_strict(cluster: Cluster) -> None:
    bed = cluster.control.bed
    for name in (OTHER, ADDRESS[OTHER]):
        said = cluster.control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config -G {name}").stdout
        for setting in (
            "stricthostkeychecking true", "connecttimeout 5", "serveraliveinterval 5",
            "batchmode yes", "identitiesonly yes", "passwordauthentication no", "user ftcluster",
            f"hostname {ADDRESS[OTHER]}", f"identityfile {MESH}/id_ed25519",
        ):  # fmt: skip
            assert f"\n{setting}\n" in f"\n{said}", setting
        reached = cluster.control.as_ranks(HEAD, f"ssh -F {MESH}/ssh_config {name} hostname")
        assert reached.stdout.strip() == OTHER, reached.stderr
    where = f"user=ftcluster,host={HEAD},addr={ADDRESS[HEAD]}"
    server = bed.exec_(OTHER, "sshd", "-T", "-C", where, check=True).stdout
    assert "pubkeyauthentication yes" in server
    known = bed.exec_(HEAD, "cat", f"{MESH}/known_hosts", check=True).stdout
    real = bed.exec_(OTHER, "cat", "/etc/ssh/ssh_host_ed25519_key.pub", check=True).stdout
    assert f"{OTHER},{ADDRESS[OTHER]} {' '.join(real.split()[:2])}\n" in known


def test_the_key_opens_nothing_but_commands_from_the_head(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    assert (
        bed.exec_(OTHER, "find", "/opt/ftcluster", "/var/lib/ftcluster", "-name", "id_*").stdout
        == ""
    )
    mode = bed.exec_(HEAD, "stat", "-c", "%a %U", f"{MESH}/id_ed25519", check=True).stdout
    assert mode.strip() == "600 ftcluster"
    lines = bed.exec_(OTHER, "cat", "/var/lib/ftcluster/.ssh/authorized_keys", check=True).stdout
    assert re.fullmatch(
        rf'restrict,from="{re.escape(ADDRESS[HEAD])}" ssh-ed25519 \S+ ftcluster-mesh@{HEAD}\n',
        lines,
    )
    through = control.as_ranks(
        HEAD, f"ssh -F {MESH}/ssh_config -W 127.0.0.1:22 {OTHER} < /dev/null"
    )
    assert "administratively prohibited" in through.stderr
    # a thief on another host
    key = bed.exec_(HEAD, "cat", f"{MESH}/id_ed25519", check=True).stdout
    ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    stolen = f"umask 077; echo '{key}' > /tmp/key; {ssh} -i /tmp/key ftcluster@{ADDRESS[THIRD]} id"
    refused = bed.exec_(OTHER, "sh", "-c", f"{stolen}; code=$?; rm /tmp/key; exit $code")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_the_firewall_lets_the_cluster_in_and_nobody_else(cluster: Cluster) -> None:
    bed = cluster.control.bed
    rules = bed.exec_(OTHER, "nft", "list", "ruleset", check=True).stdout
    assert re.findall(r"^table (.*) \{", rules, re.MULTILINE) == ["inet ftcluster"]
    for address in ADDRESS.values():
        assert address in rules
    server = "import socket; s = socket.create_server(('', PORT)); s.settimeout(40); s.accept()"
    client = "import socket; socket.create_connection((HOST, PORT), timeout=3); print('in')"
    for port in (29555, 41234, 8080):
        listen = ["systemd-run", "-q", "python3", "-c", server.replace("PORT", str(port))]
        bed.exec_(OTHER, *listen, check=True)
        time.sleep(0.5)
        program = client.replace("HOST", repr(ADDRESS[OTHER])).replace("PORT", str(port))
        stranger = bed.run("python3", "-c", program)
        # what no training uses stays as it was
        assert ("in" in stranger.stdout) == (port == 8080), (port, stranger.stderr)
        if port != 8080:
            friend = bed.exec_(HEAD, "python3", "-c", program)
            assert "in" in friend.stdout, (port, friend.stderr)


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


def test_quickstart_on_two_hosts(cluster: Cluster) -> None:
    steps = "training.max_steps=70"  # what it learns in all is tested on one host
    done = cluster.control.run("train", "quickstart", *TWO, steps, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["world_size"]) == ("done", 2)
    run = str(Path(result["model"]).parent)
    events = cluster.control.bed.exec_(HEAD, "cat", f"{run}/events.jsonl", check=True).stdout
    told = [json.loads(line) for line in events.splitlines()]
    losses = [event["loss"] for event in told if event["event"] == "step"]
    assert losses[-1] < 0.8 * losses[0]
    equal = [event for event in told if event["event"] == "parameters"]
    assert equal
    assert all(event["equal"] for event in equal)
    [placement] = [event for event in told if event["event"] == "placement"]
    planned = json.loads(cluster.control.run("plan", "quickstart", *TWO, "--json").stdout)
    assert [(place["host"], place["cpus"], place["threads"]) for place in placement["ranks"]] == [
        (host["name"], rank["cpus"], rank["threads"])
        for host in planned["hosts"]
        for rank in host["ranks"]
    ]
    ranks = cluster.control.bed.exec_(HEAD, "cat", f"{run}/hostfile", check=True).stdout
    assert ranks == f"{ADDRESS[HEAD]}:1\n{ADDRESS[OTHER]}:1\n"
    owner = cluster.control.bed.exec_(HEAD, "stat", "-c", "%U", result["model"], check=True).stdout
    assert owner.strip() == "ftcluster"
    no_rank_is_left(cluster)


def check(cluster: Cluster, code: int) -> dict[str, Any]:
    """What `check --json` says."""
    done = cluster.control.run("check", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["format"], result["state"]) == (1, "unfit" if code else "fit")
    return result


def findings(result: dict[str, Any], kind: str) -> list[str]:
    """The hosts that have a problem or a warning of this kind."""
    found = [*result["problems"], *result["warnings"]]
    return [finding["host"] for finding in found if finding["kind"] == kind]


def test_check_measures_a_healthy_cluster_and_changes_nothing(cluster: Cluster) -> None:
    control = cluster.control
    places = "/opt/ftcluster /var/lib/ftcluster /home /tmp /etc"
    files = f"find {places} ! -type d -printf '%p %T@ %s\\n' | sort"

    def state() -> list[str]:
        return [control.bed.exec_(name, "sh", "-c", files, check=True).stdout for name in NAMES]

    before = state()
    result = check(cluster, 0)
    assert state() == before
    no_rank_is_left(cluster)
    assert result["problems"] == []
    assert findings(result, "busy") == findings(result, "unmeasured") == []
    assert [host["name"] for host in result["hosts"]] == list(NAMES)
    for host in result["hosts"]:
        assert host["address"] == ADDRESS[host["name"]]
        assert (host["stack"], host["interface"]) == ("native", "eth0")
        assert host["computes_with"]
        assert host["speed"]["fp32_gflops"] > 1
        assert host["speed"]["threads"] == host["cores"] == 1
    pairs = [tuple(pair["hosts"]) for pair in result["pairs"]]
    assert pairs == [(HEAD, OTHER), (HEAD, THIRD), (OTHER, THIRD)]
    assert all(pair["latency_us"] > 1 for pair in result["pairs"])
    assert result["mb_per_second"]["min"] > 20
    assert result["all_reduce_ms"] > 0


def test_check_names_a_host_that_computes_slowly(cluster: Cluster) -> None:
    # node1 has a core for itself; of the other core each of the others has half
    cluster.control.bed.cpu(OTHER, 10)
    try:
        done = cluster.control.run("check")
    finally:
        cluster.control.bed.cpu(OTHER, None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^  {OTHER}: \d+ GFLOP/s in \w+, \d+ % less a core", done.stdout, re.M)
    assert "its threads got" in done.stdout
    assert re.search(r"^fit: 3 hosts, \d warnings?, \d+ s$", done.stdout, re.M), done.stdout


def test_check_names_a_host_with_a_slow_cable(cluster: Cluster) -> None:
    cluster.control.bed.shape(THIRD, "100mbit")
    try:
        result = check(cluster, 0)
    finally:
        cluster.control.bed.shape(THIRD, "off")
    assert THIRD in findings(result, "link"), result["warnings"]
    speeds = {tuple(pair["hosts"]): pair["mb_per_second"] for pair in result["pairs"]}
    assert 5 < speeds[HEAD, THIRD] < 13
    assert 5 < speeds[OTHER, THIRD] < 13
    assert speeds[HEAD, OTHER] > 20


def test_check_names_what_is_off_or_apart_and_measures_the_others(cluster: Cluster) -> None:
    bed = cluster.control.bed
    bed.cut(OTHER, THIRD)
    try:
        apart = check(cluster, 1)
    finally:
        bed.heal(OTHER, THIRD)
    assert [problem["what"] for problem in apart["problems"]] == [
        f"no TCP connection between it and {THIRD}"
    ]
    assert [pair["hosts"] for pair in apart["pairs"]] == [[HEAD, OTHER]]
    bed.kill(THIRD)
    try:
        off = check(cluster, 1)
    finally:
        bed.boot(THIRD)
    assert findings(off, "unreachable") == [THIRD]
    assert len(off["problems"]) == 1
    assert [host["answers"] for host in off["hosts"]] == [True, True, False]
    assert [pair["hosts"] for pair in off["pairs"]] == [[HEAD, OTHER]]
    assert off["seconds"] < 60
    no_rank_is_left(cluster)


def test_the_users_own_data_reach_all_hosts_and_ctrl_c_ends_all_ranks(
    cluster: Cluster, tmp_path: Path
) -> None:
    data = write_pairs(tmp_path / "pairs", 640)
    process = cluster.control.start(
        "train", "quickstart", *TWO, "--data", str(data), "training.num_train_epochs=90"
    )
    said, last, code, _ = interrupt_when(process, "step 10/")
    assert code == 130, said
    assert "no rank is left running" in last
    no_rank_is_left(cluster)
    for name in (HEAD, OTHER):
        copies = cluster.control.bed.exec_(name, "find", "/opt/ftcluster/data", "-type", "f").stdout
        assert re.search(r"/data/pairs-[0-9a-f]{12}/train\.jsonl$", copies, re.MULTILINE), copies


def test_a_users_script_runs_on_every_host_with_what_is_beside_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    scripts = write_scripts(tmp_path / "scripts")
    done = cluster.control.run("run", "--ranks-per-host", "1", "--", str(scripts / "sum.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"rank 0 of 3 on {HEAD}: 6\n"
    logs = done.stderr.strip().rpartition(f"{HEAD}:")[2]
    for rank, name in enumerate(NAMES):
        said = cluster.control.bed.exec_(HEAD, "cat", f"{logs}/rank-{rank}.log", check=True).stdout
        assert said == f"rank {rank} of 3 on {name}: 6\n"
    failed = cluster.control.run("run", *TWO, "--", str(scripts / "ends.py"), "7", "1")
    assert failed.returncode == 7, failed.stderr
    assert f"rank 1 on {OTHER}: ended with exit code 7" in failed.stderr
    no_rank_is_left(cluster)


def start_waiting(cluster: Cluster, script: Path) -> "subprocess.Popen[str]":
    """Start a script whose ranks wait; returns when the first one does."""
    words = ("--ranks-per-host", "1", "--", str(script), "0", "9")
    process = cluster.control.start("run", "--json", *words)
    assert process.stderr is not None
    for line in process.stderr:
        if "rank 0 is here" in line:
            time.sleep(1)  # so are the others
            return process
    raise AssertionError(f"ended with {process.wait()}")


def test_ctrl_c_and_a_killed_rank_end_a_script_on_all_hosts(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = write_scripts(tmp_path / "scripts") / "ends.py"
    process = start_waiting(cluster, script)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert json.loads(out)["state"] == "stopped"
    no_rank_is_left(cluster)

    process = start_waiting(cluster, script)
    began = time.monotonic()
    cluster.control.bed.exec_(THIRD, "pkill", "-KILL", "-f", "python [e]nds.py", check=True)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 137, said
    assert f"rank 2 on {THIRD}: was killed by signal 9 (SIGKILL)" in json.loads(out)["error"]
    assert time.monotonic() - began < 20
    no_rank_is_left(cluster)


def test_a_host_that_is_lost_ends_the_script_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    process = start_waiting(cluster, write_scripts(tmp_path / "scripts") / "ends.py")
    began = time.monotonic()
    cluster.control.bed.kill(THIRD)
    try:
        out, said = process.communicate(timeout=120)
    finally:
        cluster.control.bed.boot(THIRD)
    assert process.returncode == 1, said
    assert f"{THIRD} ({ADDRESS[THIRD]}) was lost" in json.loads(out)["error"]
    assert time.monotonic() - began < 90
    no_rank_is_left(cluster)


def test_a_changed_host_key_is_refused_by_name(cluster: Cluster) -> None:
    """The operator has accepted the new key; the mesh has not been told."""
    control, bed = cluster.control, cluster.control.bed
    keys = "/etc/ssh/ssh_host_ed25519_key"
    kept = bed.exec_(OTHER, "sh", "-c", f"cp -a {keys} /root/k; cp -a {keys}.pub /root/k.pub",
                     check=True)  # fmt: skip
    assert kept.returncode == 0
    trusted = Path(re.search(r"UserKnownHostsFile=(\S+)", bed.inventory())[1])  # type: ignore[index]
    before = trusted.read_text()
    change = f"rm {keys}*; ssh-keygen -q -t ed25519 -N '' -f {keys}; systemctl restart ssh"
    try:
        bed.exec_(OTHER, "sh", "-c", change, check=True)
        new = bed.exec_(OTHER, "cat", f"{keys}.pub", check=True).stdout
        others = [line for line in before.splitlines() if not line.startswith(OTHER)]
        trusted.write_text("\n".join([*others, f"{OTHER},{ADDRESS[OTHER]} {new}"]) + "\n")
        refused = control.run("train", "quickstart", *TWO, "training.max_steps=2")
        assert refused.returncode == 1
        assert f"{OTHER} ({ADDRESS[OTHER]}): ssh from the head fails" in refused.stderr
        assert "its host key is another one than at the last setup" in refused.stderr
        assert "step " not in refused.stderr
        no_rank_is_left(cluster)
    finally:
        back = f"mv /root/k {keys}; mv /root/k.pub {keys}.pub; systemctl restart ssh"
        bed.exec_(OTHER, "sh", "-c", back, check=True)
        trusted.write_text(before)


def test_limit_touches_one_host_and_forgets_none(cluster: Cluster) -> None:
    limited = cluster.control.run("setup", cluster.inventory, "--limit", OTHER, "--json")
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout)["hosts"][OTHER]["changed"] == 0
    assert HEAD not in limited.stderr.replace("changed", "")
    planned = cluster.control.run("train", "--dry-run", "--json", "--ranks-per-host", "1")
    assert json.loads(planned.stdout)["world_size"] == 3


def test_every_problem_of_every_host_before_anything_is_changed(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    small = "mkdir -p /mnt/small && mount -t tmpfs -o size=50m tmpfs /mnt/small"
    clock = f"printf 'LD_PRELOAD={FAKETIME}\\nFAKETIME=+3600\\n' >> /etc/environment"
    bed.exec_(OTHER, "sh", "-c", small, check=True)
    bed.exec_(THIRD, "sh", "-c", f"cp /etc/environment /root/environment; {clock}", check=True)
    folder = {HEAD: "/proc/ftcluster", OTHER: "/mnt/small/ft", THIRD: "/opt/ftcluster"}
    inventory = control.inventory(
        "bad.ini", NAMES, lambda host, line: f"{line} ftcluster_prefix={folder[host]}"
    )
    needs = json.dumps({"preflight_requirements": {
        "machine": "x86_64", "python": "3.99", "free_bytes": 5e9,
        "memory_bytes": 3e9, "clock_seconds": 5}})  # fmt: skip
    try:
        done = control.run("setup", inventory, "-e", needs)
    finally:
        bed.exec_(OTHER, "umount", "/mnt/small", check=True)
        bed.exec_(OTHER, "rmdir", "/mnt/small", check=True)
        bed.exec_(THIRD, "mv", "/root/environment", "/etc/environment", check=True)
    assert done.returncode == 1
    assert "setup failed on 3 of 3 hosts" in done.stderr
    assert "nothing was changed; mend this" in done.stderr
    text = done.stderr[done.stderr.index("setup failed on 3") :]
    of = {name: text[text.index(f"\n  {name}: ") :] for name in NAMES}
    of = {HEAD: of[HEAD].split(f"\n  {OTHER}: ")[0], OTHER: of[OTHER].split(f"\n  {THIRD}: ")[0],
          THIRD: of[THIRD]}  # fmt: skip
    for name in NAMES:
        assert re.search(r"Python 3\.11\.\d+ is too old, 3\.99 or newer is needed", of[name])
    assert "/proc/ftcluster cannot be written" in of[HEAD]
    assert "0.1 GB free at /mnt/small/ft" in of[OTHER]
    assert re.search(r"its clock is (3599|3600)\.\d s ahead of that of node[01]", of[THIRD])
    assert "mpirun needs one path on all" in text


def test_a_wrong_key_and_a_host_that_is_off_are_named(cluster: Cluster, tmp_path: Path) -> None:
    control, bed = cluster.control, cluster.control.bed
    key = tmp_path / "key"
    control.bed.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, check=True)

    def change(host: str, line: str) -> str:
        return f"{line} ansible_ssh_private_key_file={key}" if host == OTHER else line

    inventory = control.inventory("key.ini", NAMES, change)
    bed.kill(THIRD)
    began = time.monotonic()
    try:
        # a connection that is still open would let anyone in
        fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}
        done = control.run("setup", inventory, "--tags", "preflight", **fresh)
    finally:
        bed.boot(THIRD)
    assert done.returncode == 1
    assert "setup failed on 2 of 3 hosts" in done.stderr
    assert re.search(rf"{OTHER}: .*Permission denied", done.stderr)
    assert re.search(rf"{THIRD}: .*(timed out|No route to host)", done.stderr)
    assert time.monotonic() - began < 60


def test_vault_jump_host_and_a_password_for_become_go_through(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    account = (
        "useradd -m -s /bin/bash careful && echo careful:sesame | chpasswd && "
        "cp -r /home/ops/.ssh /home/careful/ && chown -R careful: /home/careful && "
        "echo 'careful ALL=(ALL) ALL' > /etc/sudoers.d/careful"
    )
    bed.exec_(HEAD, "sh", "-c", account, check=True)
    (tmp_path / "vault").write_text("open\n")
    (tmp_path / "sudo").write_text("sesame\n")
    vault = ["--vault-password-file", str(tmp_path / "vault")]
    secret = control.ansible(
        "ansible-vault", "encrypt_string", *vault, "--name", "ansible_user", "careful"
    )
    assert secret.returncode == 0, secret.stderr
    # the second host through the first
    options = re.search(r"ansible_ssh_common_args=(.*)", bed.inventory())[1]  # type: ignore[index]
    through = f"ssh -i {bed.wanted.hosts}/ops_key {options} -W %h:%p ops@{ADDRESS[HEAD]}"
    jump = f'-o ProxyCommand="{through}"'
    inventory = control.folder / "odd"
    (inventory / "host_vars").mkdir(parents=True)
    plain = Path(control.inventory("odd.ini", (HEAD, OTHER))).read_text()
    (inventory / "hosts.ini").write_text(plain)
    (inventory / "host_vars/node0.yml").write_text("---\n" + secret.stdout)
    (inventory / "host_vars/node1.yml").write_text(
        "---\nansible_ssh_common_args: >-\n  " + f"{options} {jump}\n"
    )
    done = control.run("setup", str(inventory), "--tags", "preflight,system", *vault,
                       "--become-password-file", str(tmp_path / "sudo"),
                       ANSIBLE_SSH_CONTROL_PATH_DIR=str(tmp_path / "cp"))  # fmt: skip
    # Ansible's connection stays open for a while, and userdel refuses an account in use
    remove = "pkill -KILL -u careful; sleep 1; userdel -r careful; rm /etc/sudoers.d/careful"
    bed.exec_(HEAD, "sh", "-c", remove)
    assert bed.exec_(HEAD, "getent", "passwd", "careful").returncode == 2
    assert done.returncode == 0, done.stderr
    assert "no root here" not in done.stderr
    assert "sesame" not in done.stdout + done.stderr
    came_from = bed.exec_(OTHER, "sh", "-c", "journalctl -u ssh --no-pager | grep Accepted").stdout
    assert f"Accepted publickey for ops from {ADDRESS[HEAD]}" in came_from


def test_hosts_without_a_way_out_after_a_setup_that_was_killed(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    bed.exec_(OTHER, "sh", "-c", "rm -rf /opt/ftcluster/stacks /opt/ftcluster/current", check=True)
    bed.exec_(OTHER, "ip", "route", "del", "default", check=True)
    try:
        process = control.start("setup", cluster.inventory, "-v", "--limit", OTHER)
        assert process.stderr is not None
        for line in process.stderr:
            if "skipped: Load the rules" in line or line.startswith("stack ..."):
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


def test_a_cluster_without_a_way_out_is_set_up_from_a_bundle(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    bundle = tmp_path / "native.ftbundle"
    made = control.run("bundle", "-o", str(bundle), "--glibc", "2.36", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["stack"] == "native"
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    bed.exec_(OTHER, "rm", "-rf", "/opt/ftcluster/stacks", STACK, check=True)
    for name in NAMES:
        bed.exec_(name, "ip", "route", "del", "default", check=True)
        assert "unreachable" in bed.exec_(name, "ip", "route", "get", "192.0.2.1").stderr
    try:
        without = control.run("setup", cluster.inventory, **nowhere)
        assert without.returncode == 1
        assert "cannot download the wheels for Python 3.11" in without.stderr
        assert "ftcluster setup --bundle FILE" in without.stderr
        damaged = tmp_path / "damaged.ftbundle"
        damaged.write_bytes(bundle.read_bytes()[:-4_000_000])
        refused = control.run("setup", cluster.inventory, "--bundle", str(damaged), **nowhere)
        assert refused.returncode == 1
        assert f"{damaged} is damaged or no bundle" in refused.stderr
        assert "nothing was changed" in refused.stderr
        done = control.run("setup", cluster.inventory, "--bundle", str(bundle), **nowhere)
        assert done.returncode == 0, done.stderr
        assert "mpirun reached 3 hosts, the same" in done.stdout
    finally:
        for name in NAMES:
            bed.exec_(name, "ip", "route", "add", "default", "via", "198.18.0.1")


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


def test_another_stack_becomes_current_on_all_hosts_or_on_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    control, bed = cluster.control, cluster.control.bed
    newer = ("-e", f"torch_stack_folder={own_stacks(tmp_path)}")

    def current() -> set[str]:
        return {bed.exec_(name, "readlink", STACK, check=True).stdout.strip() for name in NAMES}

    def installed() -> int:
        return len(bed.exec_(HEAD, "ls", "/opt/ftcluster/stacks", check=True).stdout.split())

    before = current()
    alone = control.run("setup", cluster.inventory, "--rollback")
    assert alone.returncode == 1
    assert "there is no former stack in /opt/ftcluster to go back to" in alone.stderr
    bed.kill(THIRD)
    try:
        failed = control.run("setup", cluster.inventory, *newer)
    finally:
        bed.boot(THIRD)
    assert failed.returncode == 1
    assert f"stays in use on every host, because {THIRD} failed or is left out" in failed.stderr
    assert current() == before
    mended = control.run("setup", cluster.inventory, *newer)
    assert mended.returncode == 0, mended.stderr
    assert current() & before == set()
    assert len(current()) == 1
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


def test_the_second_of_two_setups_is_refused_by_name(cluster: Cluster) -> None:
    control = cluster.control
    first = control.start("setup", cluster.inventory, "--tags", "system,mesh")
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("system ..."):
            break
    second = control.run("setup", cluster.inventory, "--tags", "mesh")
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert second.returncode == 1
    assert re.search(r"another setup is at work here: \S+ on \S+ \(process \d+\)", second.stderr)
    later = control.run("setup", cluster.inventory, "--tags", "mesh")
    assert later.returncode == 0, later.stderr


def test_without_root_the_login_users_trust_each_other(cluster: Cluster) -> None:
    control, bed = cluster.control, cluster.control.bed
    before = bed.exec_(OTHER, "cat", "/home/ops/.ssh/authorized_keys", check=True).stdout
    options = ("--tags", "preflight,mesh", "-e", "ftcluster_root=false")
    done = control.run("setup", cluster.inventory, *options)
    assert done.returncode == 0, done.stderr
    mesh = "~/.local/share/ftcluster/mesh"
    reached = bed.ssh(HEAD, f"ssh -F {mesh}/ssh_config {OTHER} whoami")
    assert reached.stdout.strip() == "ops", reached.stderr
    removed = control.run("teardown", cluster.inventory, "-e", "ftcluster_root=false")
    assert removed.returncode == 0, removed.stderr
    assert bed.exec_(OTHER, "cat", "/home/ops/.ssh/authorized_keys").stdout == before
