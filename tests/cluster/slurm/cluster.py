"""Hosts with Slurm: the first host runs slurmctld, all hosts run slurmd and see one shared folder.

The packages come from Debian; this module contains the configuration of the site. Hosts of the
testbed have no cgroup controllers, so Slurm cannot confine a job to its CPUs. Therefore each slurmd
runs on one of this machine's two cores, and each host is configured with one core.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.programs import wait_for
from tests.testbed import Settings, Testbed

NODES = ("node0", "node1")
PACKAGES = ("munge", "slurm-wlm")
USER = "ops"
CONFIGURATION = f"""\
ClusterName=testbed
SlurmctldHost={NODES[0]}
AuthType=auth/munge
AuthInfo=cred_expire=10
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
KillWait=30
MinJobAge=3600
SlurmdParameters=config_overrides
NodeName=node[0-{len(NODES) - 1}] CPUs=1 RealMemory=2000
PartitionName=xeons Nodes=ALL Default=YES MaxTime=60 State=UP
"""
START = """
install -o munge -g munge -m 400 {shared}/munge.key /etc/munge/munge.key
systemctl restart munge
install -m 644 {shared}/slurm.conf /etc/slurm/slurm.conf
echo CgroupPlugin=cgroup/v1 > /etc/slurm/cgroup.conf # that is not used; else slurmd looks for one
install -d -o slurm -g slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
mkdir -p /etc/systemd/system/slurmd.service.d
printf '[Service]\\nCPUAffinity={core}\\n' > /etc/systemd/system/slurmd.service.d/core.conf
systemctl daemon-reload
"""

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class SlurmCluster:
    """The hosts, and their shared folder."""

    bed: Testbed
    shared: Path

    def shell(self, host: str, command: str) -> str:
        """Return the output of a shell command that runs as root and must succeed."""
        return self.bed.exec_(host, "sh", "-c", command, check=True, timeout=600).stdout

    def as_user(self, command: str, host: str = NODES[0], seconds: float = 1200) -> Completed:
        """Return the output of a shell command that runs as Slurm's user in the shared folder."""
        argv = ("runuser", "-u", USER, "--", "env", f"HOME={self.shared}", f"USER={USER}")
        text = f"cd {self.shared} && {command}"
        return self.bed.exec_(host, *argv, "bash", "-c", text, timeout=seconds)

    def install(self, checkout: Path, pip: Path, commands: str) -> None:
        """Install ftcluster as the user, from a wheel that is built here."""
        wheel = (pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
        subprocess.run([*wheel, self.shared, checkout], check=True)
        shutil.copy(checkout / "requirements/control.txt", self.shared)
        for path in self.shared.glob("*.whl"):
            path.chmod(0o644)
        done = self.as_user(commands)
        assert done.returncode == 0, done.stderr

    def processes(self, host: str) -> list[str]:
        """Return the user's processes on a host."""
        argv = ("ps", "--no-headers", "-u", USER, "-o", "args")
        return self.bed.exec_(host, *argv, timeout=60).stdout.splitlines()

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING."""
        return self.as_user(f"squeue -h -t all -j {job} -o %T").stdout.strip()


@contextmanager
def slurm_cluster(shared: Path) -> Iterator[SlurmCluster]:
    """Start Slurm on hosts, and remove the hosts afterwards."""
    wanted = Settings.from_environment()
    settings = replace(wanted, extra=PACKAGES, shared=(str(shared),))
    with Testbed(settings) as bed:
        bed.down()
        bed.up(len(NODES))
        cluster = SlurmCluster(bed, shared)
        start(cluster)
        yield cluster


def start(cluster: SlurmCluster) -> None:
    """Configure and start Slurm on running hosts; return when all nodes are idle."""
    shared = cluster.shared
    (shared / "slurm.conf").write_text(CONFIGURATION)
    cluster.shell(NODES[0], f"cp /etc/munge/munge.key {shared} && chmod 600 {shared}/munge.key")
    cluster.shell(NODES[0], f"chown {USER} {shared}")
    for number, name in enumerate(NODES):
        cluster.shell(name, START.format(shared=shared, core=number % 2))
    cluster.shell(NODES[0], "systemctl restart slurmctld")
    for name in NODES:
        cluster.shell(name, "systemctl restart slurmd")
    wait_for(lambda: idle_nodes(cluster) == len(NODES))


def idle_nodes(cluster: SlurmCluster) -> int:
    return len(cluster.as_user("sinfo -h -N -t idle -o %N").stdout.split())
