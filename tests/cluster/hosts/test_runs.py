"""Trainings and users' scripts on several hosts, and the ways in which they end."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.cluster.cluster import FEW_PAIRS, TWO, Cluster, no_rank_is_left
from tests.cluster.control import ADDRESS, HEAD, NAMES, OTHER, THIRD
from tests.cluster.rows import pair, write_rows
from tests.programs import HANG_SECONDS, wait_for

SCRIPTS = Path(__file__).parents[1] / "scripts"
FOLLOWED_SECONDS = 30


def test_two_hosts_learn_from_the_users_own_data(cluster: Cluster, tmp_path: Path) -> None:
    control, data = cluster.control, write_rows(tmp_path / "pairs", pair, train=160, validation=40)
    options = ("--data", str(data), "batch_size=8", "--json")  # 20 steps
    done = control.run("train", "quickstart", *TWO, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["world_size"]) == ("done", 2)
    run = str(Path(result["model"]).parent)
    lines = control.shell(HEAD, f"cat {run}/events.jsonl").splitlines()
    events = [json.loads(line) for line in lines]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < 0.8 * losses[0]
    equal = [event for event in events if event["event"] == "parameters"]
    assert equal
    assert all(event["equal"] for event in equal)
    [placement] = [event for event in events if event["event"] == "placement"]
    planned = json.loads(control.run("plan", "quickstart", *TWO, "--json").stdout)
    assert [(place["host"], place["cpus"], place["threads"]) for place in placement["ranks"]] == [
        (host["name"], rank["cpus"], rank["threads"])
        for host in planned["hosts"]
        for rank in host["ranks"]
    ]
    hostfile = control.shell(HEAD, f"cat {run}/hostfile")
    assert hostfile == f"{ADDRESS[HEAD]}:1\n{ADDRESS[OTHER]}:1\n"
    assert control.shell(HEAD, f"stat -c %U {result['model']}") == "ftcluster\n"
    no_rank_is_left(cluster)
    for name in (HEAD, OTHER):
        copies = control.shell(name, "find /opt/ftcluster/data -type f")
        assert re.search(r"/data/pairs-[0-9a-f]{12}/train\.jsonl$", copies, re.MULTILINE), copies


def test_a_users_script_runs_on_every_host_with_what_is_beside_it(cluster: Cluster) -> None:
    """Copy the script's folder and keep the firewall's rules; ../test_run.py tests exit codes."""
    control = cluster.control
    required = ("-e", "ftcluster_firewall=required")
    done = control.run("run", *required, "--ranks-per-host", "1", "--", str(SCRIPTS / "sum.py"))
    assert done.returncode == 0, done.stderr
    assert "are not loaded" not in done.stderr
    assert done.stdout == f"rank 0 of 3 on {HEAD}: 6\n"
    logs = done.stderr.strip().rpartition(f"{HEAD}:")[2]
    for rank, name in enumerate(NAMES):
        said = control.shell(HEAD, f"cat {logs}/rank-{rank}.log")
        assert said == f"rank {rank} of 3 on {name}: 6\n"
    no_rank_is_left(cluster)


PLANTED = "/var/lib/ftcluster/stacks/planted"
# Each Python of the system that runs as the account imports this module, also for Ansible's
# modules. It gives a wrong answer to a question about the stack.
ANSWER = """
import os, pathlib
resolve = pathlib.Path.resolve
def planted(path, *others, **words):
    if path.name != "current":
        return resolve(path, *others, **words)
    os.system("id -un > /tmp/answered-by")
    return pathlib.Path("{0}")
pathlib.Path.resolve = planted
"""
PYTHON = f"{PLANTED}/bin/python"
PLANT = f"""
set -e
site=$(HOME=/var/lib/ftcluster python3 -m site --user-site)
mkdir -p "$site" {PLANTED}/bin
cat > "$site/usercustomize.py" <<'END'
{ANSWER.replace("{0}", PLANTED)}
END
printf '#!/bin/sh\\nid -un >> /tmp/executed-by\\nexit 4\\n' > {PYTHON}
chmod 0755 {PYTHON}
"""


def test_root_executes_no_stack_that_the_account_answers(cluster: Cluster) -> None:
    control = cluster.control
    assert control.as_ranks(HEAD, PLANT).returncode == 0
    try:
        control.run("run", "--ranks-per-host", "1", "--", str(SCRIPTS / "sum.py"))
        answered = control.shell(HEAD, "cat /tmp/answered-by")
        executed = control.shell(HEAD, "cat /tmp/executed-by 2> /dev/null || :")
    finally:
        control.shell(HEAD, "rm -rf /var/lib/ftcluster/.local /var/lib/ftcluster/stacks")
        control.shell(HEAD, "rm -f /tmp/executed-by /tmp/answered-by")
    # otherwise the module was not imported and the test proves nothing
    assert answered == "ftcluster\n"
    assert "root" not in executed.split()
    no_rank_is_left(cluster)


def start_waiting(cluster: Cluster) -> "subprocess.Popen[str]":
    """Start a script whose ranks wait; return when the first rank waits."""
    words = ("--ranks-per-host", "1", "--", str(SCRIPTS / "ends.py"), "0", "9")
    process = cluster.control.start("run", "--json", *words)
    assert process.stderr is not None
    for line in process.stderr:
        if "rank 0 is here" in line:
            time.sleep(1)  # the other ranks wait soon after
            return process
    raise AssertionError(f"ended with {process.wait()}")


def logged(cluster: Cluster, programs: tuple[str, ...], words: str, since: str) -> int:
    """Return the number of lines in the head's journal that contain a text."""
    of = " ".join(f"-t {program}" for program in programs)
    journal = f"journalctl --quiet --output cat {of} --since @{since}"
    return int(cluster.control.shell(HEAD, f"{journal} | grep -c {words} || true"))


def test_following_costs_few_commands_and_ctrl_c_ends_a_script_on_all_hosts(
    cluster: Cluster,
) -> None:
    logins = ("sshd", "sshd-session"), "Accepted"
    commands = ("sudo",), "COMMAND="
    process = start_waiting(cluster)
    began = cluster.control.shell(HEAD, "date +%s").strip()
    time.sleep(FOLLOWED_SECONDS)
    found = [logged(cluster, *one, began) for one in (logins, commands)]
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, said
    assert json.loads(out)["state"] == "stopped"
    no_rank_is_left(cluster)
    assert all(logged(cluster, *one, "0") for one in (logins, commands)), "they are logged"
    assert found[0] == 0
    assert found[1] <= FOLLOWED_SECONDS / 5  # each command waits up to 20 s for new text


def test_a_killed_rank_ends_a_script_on_all_hosts(cluster: Cluster) -> None:
    process = start_waiting(cluster)
    began = time.monotonic()
    cluster.control.shell(THIRD, "pkill -KILL -f 'python [e]nds.py'")
    out, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 137, said
    assert f"rank 2 on {THIRD}: was killed by signal 9 (SIGKILL)" in json.loads(out)["error"]
    assert time.monotonic() - began < 20
    no_rank_is_left(cluster)


def test_a_host_that_is_lost_ends_the_script_and_is_named(cluster: Cluster) -> None:
    process = start_waiting(cluster)
    began = time.monotonic()
    cluster.control.bed.kill(THIRD)
    try:
        out, said = process.communicate(timeout=HANG_SECONDS)
    finally:
        cluster.control.bed.boot(THIRD)
    assert process.returncode == 1, said
    assert f"{THIRD} ({ADDRESS[THIRD]}) was lost" in json.loads(out)["error"]
    assert time.monotonic() - began < 90
    no_rank_is_left(cluster)


def test_a_changed_host_key_is_refused_by_name(cluster: Cluster) -> None:
    """The operator has accepted the new key, while the mesh still has the old key."""
    control = cluster.control
    key = "/etc/ssh/ssh_host_ed25519_key"
    change = (f"cp -a {key} {key}.pub /root; rm {key}*; ssh-keygen -q -t ed25519 -N '' -f {key}; "
              "systemctl restart ssh")  # fmt: skip
    undo = "mv /root/ssh_host_ed25519_key* /etc/ssh; systemctl restart ssh"
    [trusted] = re.findall(r"UserKnownHostsFile=(\S+)", control.bed.inventory())
    before = Path(trusted).read_text()
    try:
        with control.changed({OTHER: (change, undo)}):
            new = control.shell(OTHER, f"cat {key}.pub")
            others = [line for line in before.splitlines() if not line.startswith(OTHER)]
            Path(trusted).write_text("\n".join([*others, f"{OTHER},{ADDRESS[OTHER]} {new}"]))
            refused = control.run("train", "quickstart", *TWO, *FEW_PAIRS)
    finally:
        Path(trusted).write_text(before)
    assert refused.returncode == 1
    assert f"{OTHER} ({ADDRESS[OTHER]}): ssh from the head fails" in refused.stderr
    assert "host key" in refused.stderr
    assert "step " not in refused.stderr
    no_rank_is_left(cluster)


def test_systemd_ends_a_supervisor_that_is_stopped_and_force_needs_none(cluster: Cluster) -> None:
    control = cluster.control
    waits = ("--max-restarts", "3", "--", str(SCRIPTS / "ends.py"), "0", "9")
    started = control.run("run", *TWO, "--detach", *waits)
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    main_process = f"systemctl show --property MainPID --value ftcluster-{run}"
    log = f"/opt/ftcluster/runs/{run}/logs/rank-1.log"

    def stop_supervisor() -> str:
        wait_for(lambda: control.shell(HEAD, f"cat {log} || true"))
        pid = control.shell(HEAD, main_process).strip()
        control.shell(HEAD, f"kill -STOP {pid}")
        return pid

    stopped = stop_supervisor()
    wait_for(lambda: control.shell(HEAD, main_process).strip() not in (stopped, "0"))
    events = f"/opt/ftcluster/runs/{run}/events.jsonl"
    wait_for(lambda: '"event": "restart"' in control.shell(HEAD, f"cat {events}"))
    stop_supervisor()
    done = control.run("stop", "--force", run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "stopped"
    no_rank_is_left(cluster)
