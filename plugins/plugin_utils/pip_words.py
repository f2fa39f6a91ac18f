# Apache-2.0 (see LICENSE)
"""Converts pip's messages about a failed download to a message with advice. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import cause, redacted
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target

LAST_LINES = 8
MIRROR = re.compile(r"https?://(?:[^/@\s]*@)?([^/\s:]+)")
INSECURE = re.compile(r"repository located at (\S+) is not a trusted or secure host")
NO_FILE = re.compile(r"invalid path: (\S+)")
# pip uses the first of these variables that is set
PROXIES = ("PIP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
BEFORE_PIP = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# advice by kind of error in fetch_errors
HINTS = {
    "expired": "have the certificate renewed; if it is still valid, correct this machine's clock",
    "name": "use the name of the mirror that is in its certificate",
    "untrusted": "name the file that contains your site's CA: PIP_CERT=FILE{unset}",
    "password": "pass them: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    "refused": "configure the proxy to allow {mirror}, or bypass it: NO_PROXY={mirror}",
    "proxy": "start the proxy, set another one (HTTPS_PROXY), or bypass it: NO_PROXY={mirror}",
}
UNKNOWN = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")
UNFETCHED = "Could not fetch URL "


def reason(lines: list[str]) -> str:
    """Return the most informative line of pip's messages."""
    for mark in (
        UNFETCHED,
        "Retrying (",
        "Skipping page",
        "\N{MULTIPLICATION SIGN} ",
        "ERROR: Could not",
        "ERROR:",
    ):
        for line in lines:
            if mark in line:
                return line.partition(": ")[2] or line
    return lines[-1] if lines else "pip failed without output"


def telling(lines: Iterable[str]) -> list[str]:
    """Return pip's messages about the cause of a failure."""
    # only these warnings can contain the cause of "no matching distribution"
    found = (
        line
        for line in lines
        if "WARNING" not in line or "Retrying (Retry(total=0" in line or "Skipping page" in line
    )
    return list(dict.fromkeys(found))[-LAST_LINES:]


def complaint(
    lines: list[str],
    target: Target,
    refused: Mapping[str, str],
    names: Collection[str],
    environ: Mapping[str, str],
) -> str:
    """Return an error message with pip's informative lines and advice.

    Args:
        refused: pip's message by package name, for packages that their own index does not have.
        names: names of the requested packages.
        environ: environment variables of pip.
    """
    missing = {canonicalize_name(name) for name in UNKNOWN.findall("\n".join(lines))}
    # one of several indexes may lack a package that another index has
    others = tuple(f"/{name}/: " for name in set(names) - missing) if missing else ()

    def concerns(line: str) -> bool:
        return UNFETCHED not in line or not any(page in line for page in others)

    concerned = [line for line in lines if concerns(line)]
    told = telling(concerned)
    own = [f"{name}: {words}" for name, words in refused.items()]
    # a package's own index is the cause if no other index has the package
    blamed = concerned + (own if missing and missing <= refused.keys() else [])
    if known := known_cause("\n".join(blamed), environ):
        return f"the control node cannot download the wheels: {known}"
    return (
        f"the control node cannot download the wheels for Python {target.python} and glibc "
        f"{target.glibc}: " + "\n".join(told + own).strip() + "\n"
        "check that pip on the control node reaches a package index (pip config list; "
        "PIP_CERT=FILE is for a mirror's own certificates, HTTPS_PROXY for a proxy), or set "
        "torch_stack_index_url, torch_stack_find_links or torch_stack_indexes, or name a Python on "
        "the hosts that the index has wheels for (ftcluster_python), or use a bundle: run "
        "ftcluster bundle on a machine that reaches an index, then ftcluster setup --bundle FILE "
        "here"
    )


def known_cause(text: str, environ: Mapping[str, str]) -> str:
    """Return the problem of a certificate or proxy with advice; "" for other problems.

    >>> known_cause("invalid path: /etc/site.pem", {"PIP_CERT": "/etc/site.pem"})
    'the certificate file /etc/site.pem, which PIP_CERT names, does not exist; correct the path'
    """
    if found := NO_FILE.search(text):
        by = next((name for name, value in environ.items() if value == found[1]), "")
        return (
            f"the certificate file {found[1]}, which {by or 'pip is configured with'}"
            f"{' names' if by else ''}, does not exist; correct the path"
        )
    if found := INSECURE.search(text):
        return (
            f"pip refuses to download from {found[1]} without TLS; configure the mirror for HTTPS, "
            f"or trust the network up to the mirror: PIP_TRUSTED_HOST={found[1]}"
        )
    wanted = MIRROR.search(text)
    mirror = wanted[1] if wanted else "the package index"
    proxies = (environ.get(name) for name in PROXIES)
    proxy = next((redacted(one) for one in proxies if one), "of pip's configuration")
    known = cause(text, mirror, proxy, "the control node")
    if known is None:
        return ""
    kind, what = known
    first = [name for name in BEFORE_PIP if environ.get(name)]
    unset = f", and unset {' and '.join(first)}, which pip prefers to it" if first else ""
    hint = HINTS[kind].format(mirror=mirror, unset=unset)
    return f"{what}; {hint}"
