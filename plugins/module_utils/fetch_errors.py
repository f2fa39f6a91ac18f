# Apache-2.0 (see LICENSE)
"""Recognizes certificate and proxy errors in the messages of pip, apt and dnf."""

from __future__ import annotations

import re

# Each entry is the kind of an error, a pattern of the programs' messages, and our message. The
# first match counts. pip's messages come from OpenSSL and urllib3, apt's messages from GnuTLS
# (OpenSSL since Debian 13), and dnf's messages from libcurl and OpenSSL.
KINDS = (
    (
        "expired",
        r"certificate has expired|uses expired certificate",
        "the certificate of {mirror} has expired",
    ),
    (
        "name",
        r"doesn't match|[Mm]ismatch, certificate is not valid|does not match the expected"
        r"|does not match target host|no alternative certificate subject name matches",
        "the certificate of {mirror} is for another name",
    ),
    (
        "untrusted",
        r"unable to get (?:local )?issuer|self[- ]signed certificate|issuer is unknown",
        "the certificate of {mirror} is not signed by a CA that {who} trusts",
    ),
    (
        "password",
        r"Tunnel connection failed: 407|407 +Proxy Authentication Required"
        r"|CONNECT tunnel failed, response 407|Received HTTP code 407 from proxy",
        "the proxy {proxy} requires a user name and a password to connect to {mirror}",
    ),
    (
        "refused",
        r"Tunnel connection failed: (?P<said>\d[\w ]+)"
        r"|Invalid response from proxy: HTTP/\S+ +(?P<answer>\d[\w ]+?)(?:  |$|\n)"
        r"|CONNECT tunnel failed, response (?P<status>\d+)"
        r"|Received HTTP code (?P<code>\d+) from proxy",
        "the proxy {proxy} does not connect to {mirror}: {said}",
    ),
    (
        "proxy",
        r"(?:Cannot|Unable to) connect to proxy.*?(?P<said>Connection refused|Name or service not"
        r" known|timed out|No route to host|Temporary failure in name resolution)",
        "the proxy {proxy} does not respond: {said}",
    ),
)
# messages of apt and libcurl that do not mention the proxy
UNREACHED = re.compile(
    r"(?:Could not connect to|Unable to connect to|Could not resolve(?: proxy:)?"
    r"|Connection failed to|Failed to connect to)"
    r" '?(?P<host>[\w.-]+|\[[\da-f:]+\])(?:(?::| port )(?P<port>\w+))?"
)
BECAUSE = re.compile("Connection refused|timed out|No route to host")


def redacted(text: str) -> str:
    """Hide the credentials in the URLs of a string.

    >>> redacted("from https://me:secret@mirror.site/simple")
    'from https://****@mirror.site/simple'
    """
    return re.sub(r"//[^/@\s]*@", "//****@", text)


def cause(text: str, mirror: str, proxy: str, who: str) -> tuple[str, str] | None:
    """Return the kind of an error and a sentence about it; ("", "") if it is not recognized.

    Args:
        text: output of the program.
        mirror: host that the packages come from.
        proxy: configured proxy, or "" if unknown.
        who: name of the machine that must trust the CA, as a part of the sentence.

    >>> said = "Could not connect to 10.0.0.9:3128 (10.0.0.9). - connect (111: Connection refused)"
    >>> cause(said, "mirror.site", "", "the host")
    ('proxy', 'the proxy 10.0.0.9:3128 does not respond: Connection refused')
    """
    for kind, pattern, words in KINDS:
        if found := re.search(pattern, text, re.DOTALL):
            said = next((value for value in found.groupdict().values() if value), "")
            return kind, " ".join(
                words.format(mirror=mirror, proxy=proxy, who=who, said=said.strip()).split()
            )
    found = UNREACHED.search(text)
    if found and found["host"] != mirror.partition(":")[0]:
        named = found["host"] + (f":{found['port']}" if found["port"] else "")
        because = BECAUSE.search(text)
        said = f": {because[0]}" if because else ""
        said = ": its name cannot be resolved" if "resolve" in text else said
        return "proxy", f"the proxy {named} does not respond{said}"
    return None
