#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Checks that a host's package manager can download packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_sources
short_description: Checks that apt or dnf reaches one of its sources
description:
  - With apt, downloads the sources' indexes with apt's settings, one after the other, until a
    download succeeds. The file is removed again, and apt's own lists stay unchanged.
  - With dnf, updates the metadata of one source, as an installation would do.
  - Checks nothing on hosts with neither apt nor dnf, or if no package is missing.
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
    description: A program of each package. A package counts as missing if its program is missing.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Check that nftables could be installed
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
    The reason why no missing package can be installed, with advice; empty if nothing was checked or
    a source responds.
  returned: success
  type: str
  sample: the certificate of mirror.example.com has expired; have the certificate renewed
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
from ansible_collections.ftcluster.cluster.plugins.module_utils.package_locks import find_holder

HELPER = "/usr/lib/apt/apt-helper"
DNF_SETTINGS = "/etc/dnf/dnf.conf"
SECONDS = 10  # limit for a source that does not respond
MOST = 3  # maximum number of sources to try
FOLDERS = ["/usr/sbin", "/sbin"]  # may be missing in a user's search path
INDEX = re.compile(r"^'([^']+/InRelease)'", re.MULTILINE)
QUICK = [
    *("-o", "Acquire::Retries=0"),
    *("-o", f"Acquire::http::Timeout={SECONDS}", "-o", f"Acquire::https::Timeout={SECONDS}"),
]
ONE_TRY = [f"--setopt=timeout={SECONDS}", "--setopt=retries=1", "--setopt=skip_if_unavailable=0"]
DNF_SAID = re.compile(r"^  - (.+)|^Error: (.+)", re.MULTILINE)  # message with or without the cause
# advice by kind of error in fetch_errors
DNF_HINTS = {
    "expired": "have the certificate renewed; if it is still valid, correct the host's clock",
    "name": "in /etc/yum.repos.d, use the name of the mirror that is in its certificate",
    "untrusted": "put the CA of your site into /etc/pki/ca-trust/source/anchors on the host, then: "
    "sudo update-ca-trust",
    "password": "set proxy_username and proxy_password in /etc/dnf/dnf.conf",
    "refused": "configure the proxy to allow {mirror}, or bypass the proxy with an empty proxy= in "
    "the source's file in /etc/yum.repos.d",
    "proxy": "start the proxy, or set another one: proxy in /etc/dnf/dnf.conf",
}
HINTS = {
    "expired": "have the certificate renewed; if it is still valid, correct the host's clock",
    "name": "in apt's sources, use the name of the mirror that is in its certificate",
    "untrusted": "put the CA of your site into /usr/local/share/ca-certificates on the host, as a "
    "file NAME.crt, then: sudo update-ca-certificates",
    "password": 'set them: Acquire::{scheme}::Proxy "http://USER:PASSWORD@HOST:PORT"; in '
    "/etc/apt/apt.conf.d",
    "refused": "configure the proxy to allow {mirror}, or bypass the proxy: "
    'Acquire::{scheme}::Proxy::{name} "DIRECT"; in /etc/apt/apt.conf.d',
    "proxy": "start the proxy, or set another one: Acquire::{scheme}::Proxy in /etc/apt/apt.conf.d",
}


def sources(listing: str) -> list[str]:
    """Return one index URL per server, from the output of `apt-get update --print-uris`.

    >>> sources("'http://m/a/InRelease' x 0\\n'http://m/b/InRelease' y 0\\n'http://n/Packages' z")
    ['http://m/a/InRelease']
    """
    first: dict[str, str] = {}
    for url in INDEX.findall(listing):
        first.setdefault(urlsplit(url).netloc, url)
    return list(first.values())


def proxy_of(settings: str, scheme: str, environ: Mapping[str, str]) -> str:
    """Return the proxy that apt uses for a URL scheme, from the output of `apt-config dump`.

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
    """Return the proxy that dnf uses for a URL scheme, from the text of dnf.conf.

    >>> dnf_proxy_of("[main]\\nproxy = http://proxy:3128\\n", "https", {})
    'http://proxy:3128'
    """
    found = re.search(r"^proxy\s*=[ \t]*(\S+)", settings, re.MULTILINE)
    own = found[1] if found else ""
    return redacted(own or _proxy_of_all(scheme, environ) or "of dnf's settings")


def dnf_sources(listing: str) -> list[str]:
    """Return the ids in the output of `dnf repolist`; skip messages of plugins above the table.

    >>> dnf_sources("Updating ...\\nrepo id      repo name\\nbaseos   AlmaLinux 9 - BaseOS\\n")
    ['baseos']
    """
    _, _, rows = listing.partition("repo id")
    return [line.split()[0] for line in rows.splitlines()[1:] if line.strip()]


def dnf_explained(said: str, source: str, settings: str, environ: Mapping[str, str]) -> str:
    """Return the reason why a source's metadata could not be fetched, and advice."""
    lines = [one or other for one, other in DNF_SAID.findall(said)]
    text = " ".join((lines or ["dnf printed nothing"])[0].split())
    url = re.search(r"https?://[^\s\[\]]+", text)
    parts = urlsplit(url[0] if url else "")
    proxy = dnf_proxy_of(settings, parts.scheme, environ)
    mirror = parts.netloc.rpartition("@")[2]
    found = cause(text, mirror, proxy, "the host") if mirror else None
    if found is None:
        return f"{redacted(text)}; in /etc/yum.repos.d, set a URL that responds for source {source}"
    kind, what = found
    return f"{what}; {DNF_HINTS[kind].format(mirror=mirror)}"


def explained(said: str, url: str, proxy: str) -> str:
    """Return the reason why an index could not be fetched, and advice."""
    parts = urlsplit(url)
    found = cause(said, parts.netloc.rpartition("@")[2], proxy, "the host")
    if found is None:
        last = [line.partition(" ")[2] for line in said.splitlines() if line.startswith("E: ")]
        text = " ".join((last or ["apt printed nothing"])[0].split())
        by = f" (through the proxy {proxy})" if "://" in proxy else ""
        return f"{text}{by}; in /etc/apt/sources.list.d, add a source that the host reaches"
    kind, what = found
    words = {"mirror": parts.netloc, "name": parts.hostname, "scheme": parts.scheme}
    return f"{what}; {HINTS[kind].format(**words)}"


def dnf_refusal(module: AnsibleModule) -> str:
    """Return the reason why all sources of dnf fail; "" if a source works or there is no source."""
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
    """Return the reason why all sources of apt fail; "" if a source works."""
    listing = module.run_command(["apt-get", "update", "--print-uris"])[1]
    settings = module.run_command(["apt-config", "dump"])[1]
    first = ""
    for url in sources(listing)[:MOST]:
        folder = Path(tempfile.mkdtemp(prefix="ftcluster-"))
        try:
            folder.chmod(0o755)  # the account of apt must be able to read the folder
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
    # dnf would wait for a lock without limit; the role os_package waits for it later
    elif missing and module.get_bin_path("dnf") and not find_holder():
        refused = dnf_refusal(module)
    module.exit_json(changed=False, missing=missing, refused=refused)


if __name__ == "__main__":
    main()
