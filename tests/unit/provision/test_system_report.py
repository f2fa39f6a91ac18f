"""The report about systems to send to others: its content, and what it omits."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.cli.main import main
from ftcluster.operations.setup import check
from ftcluster.provision import system_report
from tests.programs import ROOT
from tests.unit.check_documents import facts, found

SCRIPT = ROOT / "playbooks/files/system_report.sh"
# data that a site would not send, in the form in which hosts, ssh and sudo print them
PRIVATE = [
    "gpu-node7", "gpu-node7.hpc.acme.example", "CORP\\jane.doe", "10.20.30.40", "2001:db8:17::9",
    "52:54:00:ab:cd:ef", "SHA256:N8oO4YzZWg55+E/NNLcOHj5qC82Leg4d1qre8dJ9E2c",
    "AAAAC3NzaC1lZDI1NTE5AAAAIPvNQZ7kKnQ0X5Jd0l", "/home/jane.doe",
]  # fmt: skip
KEPT = "5.14.0-362.8.1.el9_3.x86_64 sudo 1.9.5p2 12:30:45 127.0.0.1 ubuntu 24.04 glibc 2.34"


def told() -> dict[str, list[str]]:
    """Return the script's own report about this machine."""
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=True)
    return answers(done.stdout)


def test_what_this_machine_says() -> None:
    said = told()
    kernel = Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert said["kernel"][0].startswith(kernel)
    assert {line.split()[0] for line in said["mount"]} >= {"/", "/tmp", "home"}
    for name in ("os", "uid", "libc", "package_manager", "python3", "selinux", "account", "sysctl"):
        assert len(said[name]) == 1, name


def test_what_is_masked_and_what_is_not() -> None:
    aliases = {"gpu-node7": "host1", "CORP\\jane.doe": "USER", "jane.doe": "USER", "ubuntu": "USER"}
    for private in PRIVATE:
        masked = system_report.mask({"a": [f"x {private}: y ({private})"]}, aliases)["a"][0]
        assert private not in masked
        assert not {"jane", "acme"} & set(re.findall(r"\w+", masked))
        assert re.fullmatch(r"x \S+: y \(\S+\)", masked)
    assert system_report.mask(KEPT, aliases) == KEPT


TEXTS = ["{}", "[{}]:22", "to {}, ", "from={} port", "({})", "{}: off", "xeon:{}.", "{},{}"]


@given(st.ip_addresses(), st.sampled_from(TEXTS))
def test_no_address_is_left(address: Any, text: str) -> None:
    masked = system_report.mask(text.format(address, address), {})
    assert str(address) not in masked or address.is_loopback or address.is_unspecified


def test_the_command_writes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = {"what": "ops2 may not run sudo on node0.acme.example (10.0.0.0)", "hint": "h"}
    of = {
        "node0": facts(0, hostname="node0.acme.example", user="ops2", machine_id="4f7d"),
        "node1": facts(1, hostname="node1", user="ops2", machine_id="5e6f"),
    }
    monkeypatch.setattr(
        check, "collect", lambda *_: found(2, facts=of, problems={"node0": [problem]})
    )
    systems = {
        "node1": "ftcluster-answer: os rhel 9.4\r\nftcluster-answer: mount /tmp xfs noexec\r\n"
    }
    monkeypatch.setattr(system_report, "read_systems", lambda *_: systems)
    path = tmp_path / "report.json"
    assert main(["check", "i.ini", "--system-report", str(path)]) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    document = json.loads(path.read_text())
    first, second = document["hosts"]
    assert (first["name"], second["name"]) == ("host1", "host2")
    assert (first["system"], second["system"]) == (
        {},
        {"os": ["rhel 9.4"], "mount": ["/tmp xfs noexec"]},
    )
    assert document["problems"][0]["what"] == "USER may not run sudo on host1 (ADDRESS)"
    assert second["facts"]["cores"] == 32
    for private in ("node0", "acme", "ops2", "10.0.0.", "4f7d"):
        assert private not in path.read_text()
    # an existing file is not replaced
    assert main(["check", "i.ini", "--system-report", str(path)]) == 2
