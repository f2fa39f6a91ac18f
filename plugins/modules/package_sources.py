#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Tries whether a host's package manager can get packages that are missing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_sources
short_description: Tries whether apt reaches one of its sources
description:
  - Downloads the index of one source after the other with apt's own settings, until one comes. It
    is removed again; apt's lists stay as they are.
  - On hosts without apt, or where no program is missing, nothing is tried.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
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
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
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
from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import cause

HELPER = "/usr/lib/apt/apt-helper"
SECONDS = 10  # for a source that does not answer
MOST = 3  # of them are tried
FOLDERS = ["/usr/sbin", "/sbin"]  # which are not on every user's search path
INDEX = re.compile(r"^'([^']+/InRelease)'", re.MULTILINE)
QUICK = [
    *("-o", "Acquire::Retries=0"),
    *("-o", f"Acquire::http::Timeout={SECONDS}", "-o", f"Acquire::https::Timeout={SECONDS}"),
]
# by the kinds of fetch_errors
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
            return re.sub("//[^/@]*@", "//****@", found[1])
    value = environ.get(f"{scheme}_proxy") or environ.get("all_proxy") or "of apt's settings"
    return re.sub("//[^/@]*@", "//****@", value)


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
    tries = bool(missing) and Path(HELPER).exists()
    module.exit_json(changed=False, missing=missing, refused=refusal(module) if tries else "")


if __name__ == "__main__":
    main()
