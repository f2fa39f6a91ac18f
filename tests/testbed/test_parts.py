"""The testbed's pure functions; the tests that use the testbed cover the rest."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from . import api, cli, host, registries, settings, sysctl, uplink
from .settings import Settings
from .shell import TestbedError


def test_a_suite_that_is_no_code_name_is_refused() -> None:
    with pytest.raises(TestbedError, match=r"\.\./trixie"):
        Settings.from_environment({"FTCLUSTER_TESTBED_SUITE": "../trixie"})


def test_a_record_brings_the_settings_back(tmp_path: Path) -> None:
    written = Settings(
        dir=tmp_path, nodes=5, suite="trixie", extra=("gcc",), bind_ro=("/opt",), shared=("/srv",),
        layers=("/var/tmp/stack",),
    )  # fmt: skip
    assert Settings(dir=tmp_path).recorded() is None
    written.write_record()
    assert Settings(dir=tmp_path).recorded() == written


def test_every_host_has_an_address_and_port_names_that_fit() -> None:
    nodes = Settings(nodes=settings.MAX_NODES).all_nodes()
    assert nodes[0].name == "node0"
    assert nodes[0].address == "198.18.0.10"
    assert nodes[-1].address == "198.18.0.209"
    assert len({node.mac for node in nodes}) == settings.MAX_NODES
    longest_interface_name = 15
    assert max(len(node.name) for node in nodes) <= longest_interface_name
    assert len(uplink.OUTSIDE) <= longest_interface_name


def test_the_cache_stays_while_another_testbed_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_alone", contextlib.nullcontext)
    monkeypatch.setattr(host, "other_disks", lambda: ["/var/tmp/b/node0/root"])
    bed = api.Testbed(Settings(dir=tmp_path))
    with pytest.raises(TestbedError, match=r"b/node0/root: other testbeds use the cache"):
        bed.down(purge=True)


def test_debian_sources_follow_the_suite_and_others_are_left_out() -> None:
    lines = [
        "# deb http://mirror.example/debian bookworm main",
        "deb [arch=amd64] http://mirror.example/debian bookworm main contrib",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb-src http://mirror.example/debian bookworm main",
        "deb http://tools.example tools-bookworm main",
    ]
    assert registries.retarget_lines(lines, "bookworm", "trixie") == [
        "deb [arch=amd64] http://mirror.example/debian trixie main contrib",
        "deb http://mirror.example/debian trixie-updates main",
    ]
    debian = "Types: deb\nURIs: http://mirror.example\nSuites: bookworm bookworm-updates\n"
    other = "Types: deb\nURIs: http://tools.example\nSuites: stable\n"
    off = f"Enabled: no\n{debian}"
    assert registries.retarget_stanzas([debian, other, off], "bookworm", "trixie") == [
        "Types: deb\nURIs: http://mirror.example\nSuites: trixie trixie-updates"
    ]


def test_ubuntu_comes_from_beside_the_debian_mirror() -> None:
    debian = {"debian.sources": "Types: deb\nURIs: http://mirror.example/debian/\nSuites: x"}
    assert registries.ubuntu_mirror(debian, {}) == "http://mirror.example/ubuntu"
    own = {"FTCLUSTER_TESTBED_UBUNTU": "http://u.example/u/"}
    assert registries.ubuntu_mirror(debian, own) == "http://u.example/u"
    with pytest.raises(TestbedError, match="FTCLUSTER_TESTBED_UBUNTU"):
        registries.ubuntu_mirror({"debian.list": "deb http://mirror.example/d x main"}, {})


def test_pip_settings_of_the_environment_go_before_those_of_files() -> None:
    listing = (
        ":env:.cert='/etc/ssl/certs/ca-certificates.crt'\n"
        ":env:.target='/elsewhere'\n"
        "global.cert='/home/somebody/ca.pem'\n"
        "global.find-links='/a\\n/b'\n"
        "install.user='yes'\n"
    )
    assert registries.parse_pip_options(listing) == {
        "cert": "/etc/ssl/certs/ca-certificates.crt",
        "find-links": "/a\n/b",
    }
    assert registries.parse_pip_options("global.cert='/home/somebody/ca.pem'\n") == {}


def test_local_folders_of_packages(tmp_path: Path) -> None:
    index = tmp_path / "my index" / "simple"
    index.mkdir(parents=True)
    assert registries.local_folder(str(tmp_path)) == tmp_path
    assert registries.local_folder(index.as_uri()) == index.parent
    assert registries.local_folder(str(tmp_path / "gone")) is None
    assert registries.local_folder("https://mirror.example/simple") is None


def test_hosts_get_only_certificates_that_they_have() -> None:
    environ = {
        "HTTPS_PROXY": "http://proxy.example:80",
        "SSL_CERT_DIR": "/etc/ssl/certs",
        "SSL_CERT_FILE": "/home/somebody/ca.pem",
        "SECRET": "x",
    }
    assert registries.environment_file(environ) == (
        "LANG=C.UTF-8\nHTTPS_PROXY=http://proxy.example:80\nSSL_CERT_DIR=/etc/ssl/certs\n"
    )


def test_rules_of_a_machine_without_name_servers() -> None:
    assert "dport 53" in uplink.machine_rules(["192.0.2.53"])
    assert "dport 53" not in uplink.machine_rules([])


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("exec node0", []),
        ("exec node0 ls -la", ["ls", "-la"]),
        ("exec node0 -- ls -la", ["ls", "-la"]),
        ("ssh node0 -v true", ["-v", "true"]),
        ("run ansible -i hosts nodes -m ping", ["-i", "hosts", "nodes", "-m", "ping"]),
    ],
)
def test_commands_keep_their_options(line: str, command: list[str]) -> None:
    assert cli.rest(cli.parser().parse_args(line.split())) == command


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Write kernel settings to files; return a function that reads one."""
    values = {sysctl.INOTIFY: 128, uplink.FORWARD: 0}
    values |= {f"{sysctl.NEIGHBOURS}{level}": 100_000 for level in "123"}
    for name, value in values.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(value))
    monkeypatch.setattr(sysctl, "ROOT", tmp_path)
    monkeypatch.setattr(sysctl, "RECORD", tmp_path / "record.json")
    return lambda name: int((tmp_path / name).read_text())


def test_the_last_testbed_puts_kernel_settings_back(
    kernel: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysctl, "is_up", lambda name: name != "killed")
    for name, nodes in {"killed": 1, "one": 3, "two": 4}.items():
        monkeypatch.setattr(sysctl, "SWITCH", name)
        sysctl.make_room(Settings(nodes=nodes))
        sysctl.put(uplink.FORWARD, 1)
    assert kernel(sysctl.INOTIFY) == 128 + 24 * 8
    sysctl.put_back()
    assert kernel(sysctl.INOTIFY) == 128 + 24 * 8
    monkeypatch.setattr(sysctl, "SWITCH", "one")
    sysctl.put_back()
    assert kernel(sysctl.INOTIFY) == 128
    assert kernel(uplink.FORWARD) == 0


def test_a_testbed_that_starts_while_others_end_keeps_its_kernel_settings(
    kernel: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up: set[str] = set()

    def replace(module: object, name: str, does: Callable[..., object]) -> None:
        """Replace a part of `up` by this function, during which another testbed ends."""

        def part(*given: object) -> None:
            does(*given)
            with monkeypatch.context() as other:
                other.setattr(sysctl, "SWITCH", "another")
                sysctl.put_back()

        monkeypatch.setattr(module, name, part)

    monkeypatch.setattr(api, "_alone", contextlib.nullcontext)
    monkeypatch.setattr(sysctl, "is_up", up.__contains__)
    monkeypatch.setattr(api, "_private_folder", lambda path: path.mkdir(exist_ok=True))
    monkeypatch.setattr(api.rootfs, "get", lambda _: tmp_path)
    monkeypatch.setattr(api.Testbed, "_binds", lambda _: ())
    for module, name in ((api, "require_tools"), (api.access, "make_key")):
        replace(module, name, lambda *_: None)
    replace(api.network, "switch_on", lambda _: up.add(settings.SWITCH))
    replace(sysctl, "make_room", sysctl.make_room)
    replace(api.uplink, "connect", lambda: sysctl.put(uplink.FORWARD, 1))
    replace(api.Testbed, "_start", lambda *_: None)
    api.Testbed(Settings(dir=tmp_path / "bed")).up(2)
    assert (kernel(uplink.FORWARD), kernel(sysctl.INOTIFY)) == (1, 128 + 24 * 2)
