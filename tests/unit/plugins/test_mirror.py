"""A mirror with its own CA behind a proxy, as the control node's pip sees them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import cause
from ansible_collections.ftcluster.cluster.plugins.modules import package_sources
from ansible_collections.ftcluster.cluster.plugins.modules.package_sources import (
    dnf_explained,
    explained,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import download
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Pip,
    Sources,
    Target,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import Pin
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheel_source import (
    kinds_of,
    refusal,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    get_wheels,
)

from tests.mirror import Authority, Mirror, Proxy, with_tls
from tests.unit.wheels import write_wheel

TARGET = Target("3.11", "2.36", "x86_64")
NAME = "mirror.site"
WANTED = Wanted("stack", "a==1.0\nb==1.0\n", allow_unverified=True)
INDEX = f"https://{NAME}/debian/dists/bookworm/InRelease"
FAILED = f"E: Failed to fetch {INDEX}  "
UNVERIFIED = "Certificate verification failed: The certificate is NOT trusted. The certificate"
SOURCES = Sources(index_url=f"https://{NAME}/simple")


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """Serve the mirror, and yield its port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


class Site:
    """A mirror with three certificates, and proxies that lead to it."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.ca, self.ports = folder / "ca.pem", ports

    @contextmanager
    def proxy(self, certificate: str, refuses: int = 0) -> Iterator[str]:
        where = {NAME: ("127.0.0.1", self.ports[certificate])}
        with serving(Proxy(("127.0.0.1", 0), where, refuses)) as port:
            yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("a", "b"):
        write_wheel(folder / "wheels", name, "1.0")
    ca = Authority()
    (folder / "ca.pem").write_text(ca.pem)
    ports, mirrors = {}, []
    for kind, text in {
        "good": ca.certificate(NAME),
        "expired": ca.certificate(NAME, days=-1),
        "other": ca.certificate("other.site"),
    }.items():
        path = folder / f"{kind}.pem"
        path.write_text(text)
        mirror = Mirror(("127.0.0.1", 0), folder / "wheels")
        with_tls(mirror, path)
        mirrors.append(mirror)
        threading.Thread(target=mirror.serve_forever, args=(0.05,), daemon=True).start()
        ports[kind] = mirror.server_port
    yield Site(folder, ports)
    for mirror in mirrors:
        mirror.shutdown()
        mirror.server_close()


@pytest.fixture(autouse=True)
def own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a pip without any configuration."""
    for name in os.environ:
        if name.startswith("PIP_") or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    # the check for pip takes as long as a download
    monkeypatch.setattr(download, "pip_command", lambda: [sys.executable, "-m", "pip"])


def test_wheels_come_through_a_proxy_from_a_mirror_with_a_ca_of_its_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.proxy("good") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("PIP_CERT", str(site.ca))
        assert refusal(WANTED, TARGET, SOURCES, tmp_path) == ""
        house = get_wheels(WANTED, TARGET, SOURCES, tmp_path)
    assert sorted(house.wheels) == ["a-1.0-py3-none-any.whl", "b-1.0-py3-none-any.whl"]
    # cached wheels need no mirror
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert refusal(WANTED, TARGET, SOURCES, tmp_path) == ""
    pins = "".join(
        f"{name.partition('-')[0]}==1.0 --hash=sha256:{one.sha256}\n"
        for name, one in house.wheels.items()
    )
    newer = Wanted("newer", pins)
    assert refusal(newer, TARGET, SOURCES, tmp_path) == ""
    assert "does not respond" in refusal(
        Wanted("newer", f"{pins}c==1.0\n", allow_unverified=True), TARGET, SOURCES, tmp_path
    )


@pytest.mark.parametrize(
    ("certificate", "refuses", "settings", "said", "to_do"),
    [
        ("good", 0, {"PIP_CERT": ""}, "the certificate of mirror.site is not "
         "signed by a CA that the control node trusts", "PIP_CERT=FILE"),
        ("good", 0, {"REQUESTS_CA_BUNDLE": "/etc/ssl/certs/ca-certificates.crt"},
         "by a CA that the control node trusts", "unset REQUESTS_CA_BUNDLE, which pip prefers"),
        ("good", 0, {"PIP_CERT": "/none/ca.pem"},
         "the certificate file /none/ca.pem, which PIP_CERT names", "correct the path"),
        ("expired", 0, {}, "the certificate of mirror.site has expired", "have the certificate"),
        ("other", 0, {}, "the certificate of mirror.site is for another name", "use the name"),
        ("good", 403, {}, "does not connect to mirror.site: 403 Forbidden", "NO_PROXY=mirror.site"),
        ("good", 407, {}, "requires a user name and a password to connect to mirror.site",
         "USER:PASSWORD@HOST"),
        ("good", 0, {"HTTPS_PROXY": "http://me:secret@127.0.0.1:1"},
         "the proxy http://****@127.0.0.1:1 does not respond: Connection refused", "start the"),
        ("good", 0, {"HTTPS_PROXY": "http://proxy.invalid:3128"},
         "the proxy http://proxy.invalid:3128 does not respond", "start the proxy, set another"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_what_to_do(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str, refuses: int,
    settings: dict[str, str], said: str, to_do: str,
) -> None:  # fmt: skip
    with site.proxy(certificate, refuses) as proxy:
        for name, value in {"HTTPS_PROXY": proxy, "PIP_CERT": str(site.ca), **settings}.items():
            monkeypatch.setenv(name, value)
        found = refusal(WANTED, TARGET, SOURCES, tmp_path / "cache")
        assert found.startswith("the control node cannot download the wheels: ")
        assert said in found
        assert to_do in found
        assert "\n" not in found
    assert not (tmp_path / "cache").exists()


def test_a_download_says_the_same(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.proxy("good", 403) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        said = refusal(WANTED, TARGET, SOURCES, tmp_path / "cache")
        with pytest.raises(DownloadError) as caught:
            Pip(TARGET, SOURCES, tmp_path).download([Pin("a", "1.0", frozenset())])
        assert str(caught.value) == said
        # for a script's own packages too
        asked, limits = tmp_path / "asked", tmp_path / "limits"
        asked.write_text(f"--index-url {SOURCES.index_url}\na\n")
        limits.touch()
        own = Pip(TARGET, Sources(), tmp_path).download_file(asked, limits)
        assert own.problem
        assert said.endswith(own.problem)


def test_a_mirror_without_tls_is_not_trusted(tmp_path: Path) -> None:
    found = refusal(WANTED, TARGET, Sources("http://mirror.invalid/simple"), tmp_path)
    assert "pip refuses to download from mirror.invalid without TLS" in found
    assert found.endswith("PIP_TRUSTED_HOST=mirror.invalid")


def test_a_mirror_that_lacks_a_package_is_refused_with_pips_words(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.proxy("good") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("PIP_CERT", str(site.ca))
        found = refusal(Wanted("other", "c==1.0\n"), TARGET, SOURCES, tmp_path)
    assert "No matching distribution found for c==1.0" in found


def test_hosts_of_one_kind_need_the_same_wheels() -> None:
    def host(version: str, libc: str = "glibc 2.36") -> dict[str, object]:
        pythons = [{"version": version, "path": "/usr/bin/python3"}]
        return {"pythons": pythons, "libc": libc, "machine": "x86_64"}

    hosts = {
        "a": host("3.11.2"), "b": host("3.11.9"), "c": host("3.12.1"), "e": host("3.11.2"),
        "d": host("3.11.2", "musl 1"), "f": {},
    }  # fmt: skip
    pythons = dict.fromkeys(hosts, "/usr/bin/python3") | {"e": ""}
    assert kinds_of(hosts, pythons) == {TARGET: "a", Target("3.12", "2.36", "x86_64"): "c"}


# messages of apt 2.6 of Debian 12
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"{FAILED}{UNVERIFIED} issuer is unknown.  "
         "Could not handshake: Error in the certificate verification. [IP: 198.18.0.1 3128]",
         "the certificate of mirror.site is not signed by a CA that the host trusts; put the CA"),
        (f"{FAILED}{UNVERIFIED} chain uses expired certificate.  "
         "Could not handshake: Error in the certificate verification.",
         "the certificate of mirror.site has expired; have the certificate renewed"),
        (FAILED + "Invalid response from proxy: HTTP/1.0 403 Forbidden  Server: BaseHTTP/0.6",
         "the proxy http://proxy:3128 does not connect to mirror.site: 403 Forbidden; configure"),
        (f"{FAILED}Could not connect to 198.18.0.1:9 (198.18.0.1). - connect (111: Connection "
         "refused)",
         "the proxy 198.18.0.1:9 does not respond: Connection refused; start the proxy"),
        (FAILED + "Could not resolve 'proxy.site'",
         "the proxy proxy.site does not respond: its name cannot be resolved; start the proxy"),
        (FAILED + "Could not resolve 'mirror.site'", "Failed to fetch https://mirror.site/"),
        (f"{FAILED}407  Proxy Authentication Required [IP: 127.0.0.1 41973]",
         "the proxy http://proxy:3128 requires a user name and a password to connect to "
         "mirror.site; set them"),
        (f"{FAILED}403  Forbidden [IP: 127.0.0.1 44231]\nE: Download Failed",
         f"Failed to fetch {INDEX} 403 Forbidden [IP: 127.0.0.1 44231] (through the proxy http://proxy"),
        ("", "apt printed nothing (through the proxy http://proxy:3128); in /etc/apt/sources"),
    ],
)  # fmt: skip
def test_apts_words(said: str, expected: str) -> None:
    assert explained(said, INDEX, "http://proxy:3128").startswith(expected)


def test_words_of_something_else_are_no_cause() -> None:
    for said in ("404 Not Found", "Could not connect to mirror.site:443 (10.0.0.1).", ""):
        assert cause(said, "mirror.site:443", "", "the host") is None


# libcurl's messages as dnf prints them; for certificates, those of OpenSSL, which Enterprise Linux
# uses
REPOMD = f"https://{NAME}/repodata/repomd.xml"
NOT_OK = f"  - Curl error (60): SSL peer certificate or SSH remote key was not OK for {REPOMD}"
FAILURE = f"  - Curl error (56): Failure when receiving data from the peer for {REPOMD}"
SETTINGS = "[main]\ngpgcheck=1\nproxy=http://me:secret@proxy:3128\n"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"{NOT_OK} [SSL certificate problem: unable to get local issuer certificate]",
         "the certificate of mirror.site is not signed by a CA that the host trusts; put the CA of "
         "your site into /etc/pki/ca-trust"),
        (f"{NOT_OK} [SSL certificate problem: certificate has expired]",
         "the certificate of mirror.site has expired; have the certificate renewed"),
        (f"{NOT_OK} [SSL: no alternative certificate subject name matches target host name "
         "'mirror.site']",
         "the certificate of mirror.site is for another name; in /etc/yum.repos.d, use the name"),
        (f"{FAILURE} [Received HTTP code 403 from proxy after CONNECT]",
         "the proxy http://****@proxy:3128 does not connect to mirror.site: 403; configure the "),
        (f"{FAILURE} [Received HTTP code 407 from proxy after CONNECT]",
         "the proxy http://****@proxy:3128 requires a user name and a password to connect to "
         "mirror.site; set proxy_username"),
        ("Error: There are no enabled repositories in \"/etc/yum.repos.d\".",
         "There are no enabled repositories"),
        ("", "dnf printed nothing; in /etc/yum.repos.d, set a URL that responds for source site"),
    ],
)  # fmt: skip
def test_dnfs_words(said: str, expected: str) -> None:
    assert dnf_explained(said, "site", SETTINGS, {}).startswith(expected)


class Host:
    """A host that runs commands like a module, with a dnf that has its own sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = f"--setopt=reposdir={folder} --setopt=cachedir={folder}/cache --releasever=9"
        program = folder / "bin" / "dnf"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec /usr/bin/dnf {own} "$@"\n')
        program.chmod(0o755)

    def has(self, proxy: str, more: str = "") -> None:
        (self._folder / "site.repo").write_text(
            f"[site]\nname=site\nbaseurl=https://{NAME}/\ngpgcheck=0\nproxy={proxy}\n{more}\n"
        )

    def run_command(
        self, command: list[str], environ_update: dict[str, str]
    ) -> tuple[int, str, str]:
        path = f"{self._folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            command, env=os.environ | environ_update | {"PATH": path}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.mark.needs("dnf")
def test_dnf_through_a_proxy_from_a_mirror_with_a_ca_of_its_own(site: Site, tmp_path: Path) -> None:
    host, trusts = Host(tmp_path), f"sslcacert={site.ca}"
    subprocess.run(["createrepo_c", "-q", site.ca.parent / "wheels"], check=True)
    with site.proxy("good") as proxy:
        host.has(proxy, trusts)
        assert package_sources.dnf_refusal(host) == ""  # type: ignore[arg-type]
    refused = {}
    for what, certificate, refuses in (
        ("name", "other", 0), ("refused", "good", 403), ("password", "good", 407),
    ):  # fmt: skip
        with site.proxy(certificate, refuses) as proxy:
            host.has(proxy, trusts)
            refused[what] = package_sources.dnf_refusal(host)  # type: ignore[arg-type]
    for what, proxy in (("off", "http://127.0.0.1:1"), ("unknown", "http://proxy.invalid:3128")):
        host.has(proxy, trusts)
        refused[what] = package_sources.dnf_refusal(host)  # type: ignore[arg-type]
    for what, expected in {
        "name": f"the certificate of {NAME} is for another name; in /etc/yum.repos.d, use",
        "refused": f"the proxy of dnf's settings does not connect to {NAME}: 403; configure the",
        "password": "the proxy of dnf's settings requires a user name and a password to connect to "
        f"{NAME}; set",
        "off": "the proxy 127.0.0.1:1 does not respond; start the proxy",
        "unknown": "the proxy proxy.invalid does not respond: its name cannot be resolved; start",
    }.items():
        assert refused[what].startswith(expected), refused
        assert "\n" not in refused[what]
