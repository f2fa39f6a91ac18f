import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.ftcluster.cluster.plugins.action.host_facts import ActionModule
from ansible_collections.ftcluster.cluster.plugins.modules import host_facts
from jinja2 import Environment

from tests.programs import ROOT
from tests.unit.plugins.test_resources import reader


def test_os_release_and_cpuinfo_as_they_are_written() -> None:
    text = '# a comment\nPRETTY_NAME="Rocky Linux 9.3 (Blue Onyx)"\nID="rocky"\n'
    found = host_facts.os_name(reader({"/usr/lib/os-release": text}))
    assert found == "Rocky Linux 9.3 (Blue Onyx)"
    assert host_facts.os_name(reader({})) == ""
    found = host_facts.cpu_facts({
        "vendor_id": "GenuineIntel", "cpu family": "6", "model": "106", "stepping": "6",
        "model name": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
        "flags": "fpu avx2 avx512_vnni",
    })  # fmt: skip
    assert found == {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
        "cpu_flags": ["avx2", "avx512_vnni"], "cpu_generation": "Ice Lake", "amx": "absent",
    }  # fmt: skip
    assert host_facts.cpu_facts({"stepping": "unknown"})["cpu_generation"] == "other"


def test_where_a_prefix_could_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writable = host_facts.writable
    file = tmp_path / "file"
    file.touch()
    assert writable(tmp_path / "a" / "b")
    assert not writable(file, has_root=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not writable(tmp_path / "a" / "b")
    assert writable(tmp_path / "a" / "b", has_root=True)
    assert not writable(Path("/proc/a"), has_root=True)
    assert not writable(Path("/sys/a"), has_root=True)
    assert writable(Path("/system/a"), has_root=True)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert not writable(tmp_path / "a" / "b", has_root=True)


NOEXEC = """
import sys
from pathlib import Path
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import noexec
print(noexec(Path(sys.argv[1], "a/b"))["what"])
assert noexec(Path(sys.argv[1]).parent) is None
"""


@pytest.mark.needs("mount")
def test_a_prefix_from_which_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "ansible_collections/ftcluster").mkdir(parents=True)
    (tmp_path / "ansible_collections/ftcluster/cluster").symlink_to(ROOT)
    mounted = 'mount -t tmpfs -o noexec none "$4" && exec "$@"'
    argv = [sys.executable, "-c", NOEXEC, str(tmp_path / "x")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *argv],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "is mounted noexec" in done.stdout, done.stderr


READ_ONLY = """
import json, sys
from pathlib import Path
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import read_only
top = Path(sys.argv[1])
try:
    (top / "runs" / "r-1").mkdir()
except OSError as error:
    problem = os_problem(error, top)
print(json.dumps([read_only(top), read_only(top / "runs"), read_only(top / "runs/x"), problem]))
"""


@pytest.mark.needs("mount")
def test_folders_of_the_prefix_that_are_mounted_read_only(tmp_path: Path) -> None:
    for folder in ("x/runs", "x/cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ansible_collections/ftcluster").mkdir(parents=True)
    (tmp_path / "ansible_collections/ftcluster/cluster").symlink_to(ROOT)
    bind = 'mount --bind "$4/runs" "$4/runs" && mount -o remount,ro,bind "$4/runs" && exec "$@"'
    argv = [sys.executable, "-c", READ_ONLY, str(tmp_path / "x")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", bind, "sh", *argv],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *folders, problem = json.loads(done.stdout)
    runs = f"{tmp_path}/x/runs"
    assert folders == [[runs], [runs], [f"{runs}/x"]]
    assert problem.startswith(f"{runs}/r-1: Read-only file system: mount it writable")
    assert host_facts.read_only(tmp_path / "x") == []


def test_libraries_are_looked_for_in_the_stack_first(tmp_path: Path) -> None:
    own, hosts = tmp_path / "current/lib", tmp_path / "usr/lib"
    folders = (own, hosts)
    assert host_facts.library(host_facts.OPENMP, folders) == ""
    for folder in (hosts, own):
        folder.mkdir(parents=True)
        (folder / "libiomp5.so").touch()
        assert host_facts.library(host_facts.OPENMP, folders) == str(folder / "libiomp5.so")


def test_a_folder_that_may_not_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def refusing(path: Path, **options: Any) -> Any:
        if path.is_relative_to("/usr/lib"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refusing)
    assert host_facts.nearest_existing(Path("/usr/lib/a/b")) == Path("/usr")


@pytest.mark.parametrize(
    ("rc", "stdout", "known"),
    [
        (0, "1795273156.110225324\n", True),
        (0, "Welcome to node0!\r\n1795273156.110225324\r\n", True),
        (0, "1795273156.%N\n", False),  # output of busybox
        (127, "", False),
    ],
)
def test_what_date_answers(
    monkeypatch: pytest.MonkeyPatch, rc: int, stdout: str, known: bool
) -> None:
    action, clock = object.__new__(ActionModule), iter((1795273095.0, 1795273099.0))
    action._low_level_execute_command = lambda *_, **__: {"rc": rc, "stdout": stdout}
    monkeypatch.setattr("time.time", lambda: next(clock))
    offset, error = action._clock()
    assert (offset and round(offset), error) == ((59, 2.0) if known else (None, None))


# --- the Pythons and the stacks


def found_pythons(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, str]]
) -> list[dict[str, str]]:
    """Return the Pythons that are found if the search path has these programs."""

    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in answers else None

    def run_command(argv: list[str]) -> tuple[int, str, str]:
        code, out = answers[Path(argv[0]).name]
        return code, out, "an error" * (code != 0)

    monkeypatch.setattr(host_facts.shutil, "which", which)
    found: list[dict[str, str]] = host_facts.pythons(SimpleNamespace(run_command=run_command))
    return found


def run(argv: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


OTHER = 12 if sys.version_info[1] != 12 else 13


def test_ansibles_own_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ".".join(map(str, sys.version_info[:3]))
    found = found_pythons(
        monkeypatch, {"python3.9": (0, "3.9.2 /usr/bin/python3.9\n"),
                      f"python3.{OTHER}": (0, f"3.{OTHER}.1 /opt/my python/bin/python3\n")},
    )  # fmt: skip
    assert found[0]["version"].startswith(own)
    assert found[0]["path"] == sys.executable
    assert found[1:] == [
        {"version": "3.9.2", "path": "/usr/bin/python3.9"},
        {"version": f"3.{OTHER}.1", "path": "/opt/my python/bin/python3"},
    ]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (f"python3.{OTHER}", (127, "")),  # a version manager's shim without this version
        # the current Python, which is known already
        (f"python3.{sys.version_info[1]}", (0, "3.99.9 /usr/bin/again")),
        ("python3.7", (0, "3.7.1 /usr/bin/python3.7")),  # Ansible does not support this version
        ("python2.7", (0, "2.7.18 /usr/bin/python2.7")),
    ],
)
def test_pythons_that_do_not_count(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: tuple[int, str]
) -> None:
    assert len(found_pythons(monkeypatch, {name: answer})) == 1


def test_pythons_on_the_search_path_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"python3.{OTHER}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = host_facts.pythons(SimpleNamespace(run_command=run))
    assert len(found) == 2
    assert found[1]["version"] == found[0]["version"]
    assert Path(found[1]["path"]).exists()


def test_a_python_that_is_given_is_the_only_one_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    def found(python: object) -> tuple[list[dict[str, str]], dict[str, str] | None]:
        params = {"python": str(python), "rank_user": ""}
        module = SimpleNamespace(params=params, run_command=run)
        both: tuple[list[dict[str, str]], dict[str, str] | None]
        both = host_facts.pythons_for_stacks(module, False)
        return both

    own = platform.python_version()
    assert found(sys.executable) == ([{"version": own, "path": sys.executable}], None)
    pythons, refused = found(tmp_path)
    assert pythons[0]["path"] == sys.executable
    assert refused is not None
    assert refused["what"] == f"ftcluster_python={tmp_path}: is not an executable file"


def test_the_stack_in_use_is_the_name_of_its_folder(tmp_path: Path) -> None:
    assert host_facts.current_stack(tmp_path) == ""
    (tmp_path / "current").symlink_to(tmp_path / "stacks" / "native-1b2c")
    # even if the folder no longer exists
    assert host_facts.current_stack(tmp_path) == "native-1b2c"
    (tmp_path / "current").unlink()
    (tmp_path / "current").mkdir()
    assert host_facts.current_stack(tmp_path) == ""
    assert host_facts.current_stack(tmp_path / "none") == ""
    # only completely installed stacks count
    assert host_facts.finished_stacks(tmp_path / "none") == []
    for name in ("native-2", "native-1", "broken-off", "native-1.staging-00ff"):
        (tmp_path / "stacks" / name).mkdir(parents=True)
    (tmp_path / "stacks" / "file").touch()
    for name in ("native-2", "native-1"):
        (tmp_path / "stacks" / name / ".complete").touch()
    assert host_facts.finished_stacks(tmp_path) == ["native-1", "native-2"]
    assert host_facts.finished_stacks(tmp_path / "stacks" / "file") == []


# --- the network


@pytest.mark.parametrize(
    ("connection", "port"),
    [
        ("203.0.113.9 51000 10.0.0.5 2302", 2302),
        ("fd00::9 51000 fd00::5 22", 22),
        ("", 0),
        ("?", 0),
    ],
)
def test_sshs_port_is_the_one_that_the_host_saw(connection: str, port: int) -> None:
    assert host_facts.port_facts(connection, "")["ssh_port"] == port


@pytest.mark.parametrize(
    ("seen", "given", "port"),
    [(22, "2201", 22), (2302, None, 2302), (0, "2201", 2201), (0, None, 22)],
)
def test_the_inventorys_port_is_the_last_resort(seen: int, given: str | None, port: int) -> None:
    """The port may belong to NAT; the host's own port may be only in ssh_config."""
    variables = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text())
    template = Environment(autoescape=False).from_string(
        variables["preflight__decided"]["ssh_port"]
    )
    inventory = {"ansible_port": given} if given else {}
    assert template.render(preflight__host={"facts": {"ssh_port": seen}}, **inventory) == str(port)


@pytest.mark.parametrize(
    ("local", "address"), [(True, ("192.168.0.10", "lan0")), (False, ("100.64.0.5", "vpn0"))]
)
def test_a_head_that_is_the_control_node_does_not_go_by_its_operators_session(
    local: bool, address: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [
        {"ifname": name, "addr_info": [{"family": "inet", "local": one, "scope": "global"}]}
        for name, one in (("vpn0", "100.64.0.5"), ("lan0", "192.168.0.10"))
    ]
    asked: list[list[str]] = []
    monkeypatch.setattr(
        host_facts, "source_address", lambda others: asked.append(others) or "192.168.0.10"
    )
    monkeypatch.setenv("SSH_CONNECTION", "100.64.0.9 51000 100.64.0.5 22")
    module = SimpleNamespace(
        params={"local": local, "address": "", "inventory_address": "head", "other_hosts": ["m2"],
                "rank_user": ""},
        get_bin_path=lambda _: "ip",
        run_command=lambda _: (0, json.dumps(links), ""),
    )  # fmt: skip
    found = host_facts.network_facts(module)
    assert (found["network_address"], found["network_interface"]) == address
    assert asked == [["m2"]]


# --- firewalls of the host


@pytest.mark.parametrize(
    ("ufw", "active", "found"),
    [
        ("# ufw\nENABLED=yes\nLOGLEVEL=low\n", (), "ufw"),
        ("ENABLED=no\n", ("ufw",), ""),
        ("", ("firewalld",), "firewalld"),
        ("", (), ""),
    ],
)
def test_who_manages_a_firewall(ufw: str, active: tuple[str, ...], found: str) -> None:
    read_file = reader({"/etc/ufw/ufw.conf": ufw})
    assert host_facts.host_firewall(read_file, lambda unit: unit in active) == found


def test_whose_an_account_is() -> None:
    def passwd(_: object) -> str:
        return "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"

    assert host_facts.origin("nobody", passwd) == "other"
    # getent knows the account, and the file does not
    assert host_facts.origin("root", passwd) == "directory"
    assert host_facts.origin("no-such-account", passwd) == host_facts.origin("", passwd) == ""
    role = (ROOT / "roles/account/vars/main.yml").read_text(encoding="utf-8")
    assert f"account__comment: {host_facts.ACCOUNT_COMMENT}\n" in role
