#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Tries whether a host's package manager can get packages that are missing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_sources
short_description: Tries whether apt or dnf reaches one of its sources
description:
  - Downloads the index of one source after the other with apt's own settings, until one comes. It
    is removed again; apt's lists stay as they are.
  - Of dnf the metadata of one source are brought up to date, which an installation would do too.
  - On hosts with neither, or where no program is missing, nothing is tried.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.reads
options:
  packages:
    description: The packages that are missing.
    type: list
    elements: str
    default: []
  programs:
    description: Packages that count as missing where the program, which is the value, is.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Try whether nftables could be installed
  ftcluster.cluster.package_sources:
    programs: {nftables: nft}
  register: sources
"""

RETURN = r"""
missing:
  description: The packages that are missing.
  returned: success
  type: list
  elements: str
  sample: [nftables]
refused:
  description: >-
    Why none of them can be installed, with what to do; empty where nothing was tried or a source
    answers.
  returned: success
  type: str
  sample: the certificate of mirror.example.com has expired; have it renewed
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import cause, redacted

HELPER = "/usr/lib/apt/apt-helper"
DNF_SETTINGS = "/etc/dnf/dnf.conf"
SECONDS = 10  # for a source that does not answer
MOST = 3  # of them are tried
FOLDERS = ["/usr/sbin", "/sbin"]  # which are not on every user's search path
INDEX = re.compile(r"^'([^']+/InRelease)'", re.MULTILINE)
QUICK = [
    *("-o", "Acquire::Retries=0"),
    *("-o", f"Acquire::http::Timeout={SECONDS}", "-o", f"Acquire::https::Timeout={SECONDS}"),
]
ONE_TRY = [f"--setopt=timeout={SECONDS}", "--setopt=retries=1", "--setopt=skip_if_unavailable=0"]
DNF_SAID = re.compile(r"^  - (.+)|^Error: (.+)", re.MULTILINE)  # with the cause, or without it
# by the kinds of fetch_errors
DNF_HINTS = {
    "expired": "have it renewed; if its dates are right, the host's clock is wrong",
    "name": "name the mirror in /etc/yum.repos.d as its certificate does",
    "untrusted": "put the CA of your site into /etc/pki/ca-trust/source/anchors on the host, then: "
    "sudo update-ca-trust",
    "password": "give them: proxy_username and proxy_password in /etc/dnf/dnf.conf",
    "refused": "have it let {mirror} through, or go without it: an empty proxy= in the source's "
    "file in /etc/yum.repos.d",
    "proxy": "start it, or name another one: proxy in /etc/dnf/dnf.conf",
}
HINTS = {
    "expired": "have it renewed; if its dates are right, the host's clock is wrong",
    "name": "name the mirror in apt's sources as its certificate does",
    "untrusted": "put the CA of your site into /usr/local/share/ca-certificates on the host, as a "
    "file NAME.crt, then: sudo update-ca-certificates",
    "password": 'give them: Acquire::{scheme}::Proxy "http://USER:PASSWORD@HOST:PORT"; in '
    "/etc/apt/apt.conf.d",
    "refused": "have it let {mirror} through, or go without it: Acquire::{scheme}::Proxy::{name} "
    '"DIRECT"; in /etc/apt/apt.conf.d',
    "proxy": "start it, or name another one: Acquire::{scheme}::Proxy in /etc/apt/apt.conf.d",
}


def sources(listing: str) -> list[str]:
    """The addresses of one index of each server, of what `apt-get update --print-uris` prints.

    >>> sources("'http://m/a/InRelease' x 0\\n'http://m/b/InRelease' y 0\\n'http://n/Packages' z")
    ['http://m/a/InRelease']
    """
    first: dict[str, str] = {}
    for url in INDEX.findall(listing):
        first.setdefault(urlsplit(url).netloc, url)
    return list(first.values())


def proxy_of(settings: str, scheme: str, environ: Mapping[str, str]) -> str:
    """The proxy that apt uses for a scheme, by what `apt-config dump` prints.

    >>> proxy_of('Acquire::http::Proxy "http://me:secret@proxy:3128";', "https", {})
    'http://****@proxy:3128'
    """
    for one in dict.fromkeys((scheme, "http")):
        found = re.search(rf'^Acquire::{one}::Proxy "([^"]+)";', settings, re.MULTILINE | re.I)
        if found:
            return redacted(found[1])
    return redacted(_proxy_of_all(scheme, environ) or "of apt's settings")


def _proxy_of_all(scheme: str, environ: Mapping[str, str]) -> str:
    return environ.get(f"{scheme}_proxy") or environ.get("all_proxy") or ""


def dnf_proxy_of(settings: str, scheme: str, environ: Mapping[str, str]) -> str:
    """The proxy that dnf uses for a scheme, by its dnf.conf.

    >>> dnf_proxy_of("[main]\\nproxy = http://proxy:3128\\n", "https", {})
    'http://proxy:3128'
    """
    found = re.search(r"^proxy\s*=[ \t]*(\S+)", settings, re.MULTILINE)
    own = found[1] if found else ""
    return redacted(own or _proxy_of_all(scheme, environ) or "of dnf's settings")


def dnf_sources(listing: str) -> list[str]:
    """The ids that `dnf repolist` prints, below what plugins such as subscription-manager say.

    >>> dnf_sources("Updating ...\\nrepo id      repo name\\nbaseos   AlmaLinux 9 - BaseOS\\n")
    ['baseos']
    """
    _, _, rows = listing.partition("repo id")
    return [line.split()[0] for line in rows.splitlines()[1:] if line.strip()]


def dnf_explained(said: str, source: str, settings: str, environ: Mapping[str, str]) -> str:
    """Why the metadata of a source did not come, and what to do."""
    lines = [one or other for one, other in DNF_SAID.findall(said)]
    text = " ".join((lines or ["dnf says nothing"])[0].split())
    url = re.search(r"https?://[^\s\[\]]+", text)
    parts = urlsplit(url[0] if url else "")
    proxy = dnf_proxy_of(settings, parts.scheme, environ)
    mirror = parts.netloc.rpartition("@")[2]
    found = cause(text, mirror, proxy, "the host") if mirror else None
    if found is None:
        return (
            f"{redacted(text)}; have the source {source} in /etc/yum.repos.d name one that answers"
        )
    kind, what = found
    return f"{what}; {DNF_HINTS[kind].format(mirror=mirror)}"


def explained(said: str, url: str, proxy: str) -> str:
    """Why an index did not come, and what to do."""
    parts = urlsplit(url)
    found = cause(said, parts.netloc.rpartition("@")[2], proxy, "the host")
    if found is None:
        last = [line.partition(" ")[2] for line in said.splitlines() if line.startswith("E: ")]
        text = " ".join((last or ["apt says nothing"])[0].split())
        by = f" (by the proxy {proxy})" if "://" in proxy else ""
        return f"{text}{by}; name a source that the host reaches in /etc/apt/sources.list.d"
    kind, what = found
    words = {"mirror": parts.netloc, "name": parts.hostname, "scheme": parts.scheme}
    return f"{what}; {HINTS[kind].format(**words)}"


def dnf_refusal(module: AnsibleModule) -> str:
    """Why none of dnf's sources gives anything; "" where one does, or there is none."""
    words = {"LC_ALL": "C.UTF-8"}
    listing = module.run_command(["dnf", "-q", "repolist"], environ_update=words)[1]
    try:
        settings = Path(DNF_SETTINGS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        settings = ""
    first = ""
    for source in dnf_sources(listing)[:MOST]:
        command = ["dnf", *ONE_TRY, f"--repo={source}", "--refresh", "makecache"]
        code, out, err = module.run_command(command, environ_update=words)
        if code == 0:
            return ""
        first = first or dnf_explained(out + err, source, settings, os.environ)
    return first


def refusal(module: AnsibleModule) -> str:
    """Why none of apt's sources gives anything; "" where one does."""
    listing = module.run_command(["apt-get", "update", "--print-uris"])[1]
    settings = module.run_command(["apt-config", "dump"])[1]
    first = ""
    for url in sources(listing)[:MOST]:
        folder = Path(tempfile.mkdtemp(prefix="ftcluster-"))
        try:
            folder.chmod(0o755)  # apt's own account reads there
            command = [HELPER, *QUICK, "download-file", url, str(folder / "index")]
            code, out, err = module.run_command(command)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if code == 0:
            return ""
        proxy = proxy_of(settings, urlsplit(url).scheme, os.environ)
        first = first or explained(out + err, url, proxy)
    return first


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "programs": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    absent = [
        package
        for package, program in module.params["programs"].items()
        if not module.get_bin_path(program, opt_dirs=FOLDERS)
    ]
    missing = [*module.params["packages"], *absent]
    refused = ""
    if missing and Path(HELPER).exists():
        refused = refusal(module)
    elif missing and module.get_bin_path("dnf"):
        refused = dnf_refusal(module)
    module.exit_json(changed=False, missing=missing, refused=refused)


if __name__ == "__main__":
    main()
