"""This machine's access to package registries, read here so that the hosts get the same.

Mirrors, proxies, certificates and local folders of packages are this machine's own settings,
whatever they are. No registry is named in this package.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from .shell import TestbedError, environment, run

BUNDLE = "/etc/ssl/certs/"  # every host has these certificates; other paths would not exist there

# settings of pip that name sources of packages
PIP_PLACES = ("find-links", "index-url", "extra-index-url")
PIP_KEYS = (
    *PIP_PLACES,
    *("cert", "disable-pip-version-check", "no-index", "proxy", "trusted-host"),
    *("default-timeout", "retries", "timeout"),
)
CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


# ---------------------------------------------------------------- apt
def codename() -> str:
    """Return this machine's Debian suite, or "" if it is not Debian."""
    release = Path("/etc/os-release").read_text()
    if not re.search(r'^ID="?debian"?$', release, re.M):
        return ""
    found = re.search(r'^VERSION_CODENAME="?(\w+)"?$', release, re.M)
    return found[1] if found else ""


def apt_sources(suite: str) -> dict[str, str]:
    """Return this machine's Debian mirrors as apt source files (name: text) for `suite`.

    Sources of other distributors are skipped. The result is empty if this machine has no Debian
    sources; then mmdebstrap uses Debian's own mirror.
    """
    own = codename()
    folder = Path("/etc/apt/sources.list.d")
    if not own:
        return {}
    lists = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list"))]
    one_line = "\n".join(map(_read, lists)).splitlines()
    stanzas = re.split(r"\n\s*\n", "\n\n".join(map(_read, sorted(folder.glob("*.sources")))))
    files = {
        "debian.list": "".join(f"{line}\n" for line in retarget_lines(one_line, own, suite)),
        "debian.sources": "\n".join(f"{text}\n" for text in retarget_stanzas(stanzas, own, suite)),
    }
    return {name: text for name, text in files.items() if text}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _is_debian(suites: str, own: str) -> bool:
    return any(suite == own or suite.startswith(f"{own}-") for suite in suites.split())


def retarget_lines(lines: list[str], own: str, suite: str) -> list[str]:
    """Change the suite in `deb URI SUITE COMPONENTS` lines from `own` to `suite`."""
    found = [re.match(r"(deb\s+(?:\[[^]]*\]\s+)?\S+\s+)(\S+)(.*)", line.strip()) for line in lines]
    return [m[1] + m[2].replace(own, suite, 1) + m[3] for m in found if m and _is_debian(m[2], own)]


def retarget_stanzas(stanzas: list[str], own: str, suite: str) -> list[str]:
    """Change the suite in the newer form of sources, which has the field `Suites:`."""
    result = []
    for text in stanzas:
        suites = re.search(r"^Suites:(.*)$", text, re.M | re.I)
        off = re.search(r"^Enabled:\s*no\b", text, re.M | re.I)
        if suites and not off and _is_debian(suites[1], own):
            start, end = suites.span(1)
            named = re.sub(rf"\b{own}\b", suite, suites[1])
            result.append((text[:start] + named + text[end:]).strip())
    return result


def apt_settings() -> str:
    """Return this machine's proxy and date-check settings for apt, as the text of a file."""
    dump = run("apt-config", "dump", "--no-empty", "--format", '%F "%v";%n', "Acquire").stdout
    keep = re.compile(r"Acquire::(https?::|Check-|Retries|ForceIPv)", re.I)
    return "".join(f"{line}\n" for line in dump.splitlines() if keep.match(line))


UBUNTU = ("jammy", "noble")
# versions of the first release of noble, which its archive keeps
KEYRING = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
KEYRING_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"


def ubuntu_mirror(debian: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of an Ubuntu mirror: the configured one, or else one beside a Debian mirror.

    Raises:
        TestbedError: no mirror is configured, and no Debian mirror's path ends with "debian".
    """
    beside = re.search(r"(https?://\S+)/debian/?(?=\s|$)", "\n".join(debian.values()))
    if set_one := environ.get("FTCLUSTER_TESTBED_UBUNTU", "").strip():
        return set_one.rstrip("/")
    if beside:
        return f"{beside[1]}/ubuntu"
    raise TestbedError("set FTCLUSTER_TESTBED_UBUNTU to the URL of a mirror of Ubuntu")


def ubuntu_sources(mirror: str, suite: str) -> dict[str, str]:
    """Return Ubuntu's apt source files, in the form of `apt_sources`."""
    suites = (suite, f"{suite}-updates", f"{suite}-security")
    lines = [f"deb {mirror} {one} main universe\n" for one in suites]
    return {"ubuntu.list": "".join(lines)}


# ---------------------------------------------------------------- pip
@functools.cache
def _pip_options() -> dict[str, str]:
    for python in (sys.executable, "python3"):  # a virtual environment's Python may have no pip
        listing = subprocess.run(
            [python, "-m", "pip", "config", "list"],
            capture_output=True, text=True, env=environment(),
        )  # fmt: skip
        if listing.returncode == 0:
            return parse_pip_options(listing.stdout)
    return {}


def parse_pip_options(listing: str) -> dict[str, str]:
    """Return the settings in `pip config list`; the environment overrides files."""
    options: dict[str, str] = {}
    for level in ("global.", ":env:."):
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            if key.removeprefix(level) in PIP_KEYS:
                options[key.removeprefix(level)] = str(ast.literal_eval(value))
    if not options.get("cert", BUNDLE).startswith(BUNDLE):
        del options["cert"]
    return options


def pip_conf() -> str:
    """Return pip's configuration for the hosts, or "" if this machine has none."""
    options = sorted(_pip_options().items())
    lines = [f"{key} = {' '.join(value.split())}\n" for key, value in options]
    return "[global]\n" + "".join(lines) if lines else ""


def pip_folders() -> list[str]:
    """Return the local folders in pip's configuration, which the hosts must see."""
    places = [place for key in PIP_PLACES for place in _pip_options().get(key, "").split()]
    return sorted({str(folder) for place in places if (folder := local_folder(place))})


def local_folder(place: str) -> Path | None:
    """Return the folder of a find-links path or a file:// index; None if it is not local."""
    path = Path(unquote(place.removeprefix("file://")))
    if not path.is_absolute() or not path.is_dir():
        return None
    if path.name == "simple" and len(path.parts) > 2:
        return path.parent  # an index: its packages are in the folder beside it
    return path


# ---------------------------------------------------------------- everything else
def environment_file(environ: Mapping[str, str] = os.environ) -> str:
    """Return /etc/environment for the hosts: proxies and certificates."""
    proxy = re.compile(r"(https?|no|all|ftp)_proxy", re.I)
    proxies = {name: value for name, value in environ.items() if proxy.fullmatch(name)}
    cas = {k: environ[k] for k in CA_VARIABLES if f"{environ.get(k)}/".startswith(BUNDLE)}
    lines = [f"{key}={value}\n" for key, value in sorted({**proxies, **cas}.items())]
    return "LANG=C.UTF-8\n" + "".join(lines)


def certificates() -> list[Path]:
    """Return certificates that an administrator added to this machine."""
    return sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt"))


def resolv_conf() -> Path:
    """Return the file with the real name servers, because hosts cannot reach a stub on loopback."""
    plain, behind_stub = Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")
    only_stub = all(address.startswith("127.") for address in _name_servers(plain))
    return behind_stub if only_stub and behind_stub.exists() else plain


def resolvers() -> list[str]:
    return _name_servers(resolv_conf())


def _name_servers(path: Path) -> list[str]:
    return re.findall(r"^nameserver\s+([\d.]+)\s*$", _read(path), re.M)
