"""A site's mirror in the hosts' network, which only its proxy resolves, with its own CA."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.control import Control
from tests.mirror import Authority, Config
from tests.programs import ROOT, wait_for
from tests.testbed import registries
from tests.testbed.settings import CONTROL_ADDRESS

MIRROR, EXPIRED = "mirror.site", "old.site"  # names that only the proxy can resolve
PROXY, REFUSES, NOBODY = (f"http://{CONTROL_ADDRESS}:{port}" for port in (3128, 3129, 3130))
# makes a host use only this mirror; BACK reverts this
SOURCES = """
set -e
mkdir /root/apt
mv /etc/apt/sources.list* /root/apt
echo 'deb https://{mirror}/debian {suite} main' > /etc/apt/sources.list
printf 'Acquire::https::Proxy "%s";\n' '{proxy}' > /etc/apt/apt.conf.d/99site
"""
TRUST = """
cat > /usr/local/share/ca-certificates/site.crt <<'END'
{ca}
END
update-ca-certificates 2> /dev/null > /dev/null
"""
BACK = """
rm -rf /etc/apt/sources.list* /etc/apt/apt.conf.d/99site
mv /root/apt/* /etc/apt
rmdir /root/apt
rm -f /usr/local/share/ca-certificates/site.crt
update-ca-certificates --fresh 2> /dev/null > /dev/null
"""


@dataclass(frozen=True)
class SiteMirror:
    """The addresses and certificates of a mirror, for the control node and hosts."""

    ca: Path
    suite: str

    def host(self, proxy: str = PROXY, trusts: bool = True, mirror: str = MIRROR) -> str:
        """Return the commands that make a host download packages through this proxy."""
        text = SOURCES.format(mirror=mirror, suite=self.suite, proxy=proxy)
        return text + (TRUST.format(ca=self.ca.read_text()) if trusts else "")

    def control(self, mirror: str = MIRROR) -> dict[str, str]:
        """Return the variables that make the control node's pip use only this mirror."""
        return {
            "PIP_INDEX_URL": f"https://{mirror}/simple", "HTTPS_PROXY": PROXY,
            "PIP_CERT": str(self.ca), "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "", "REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": "",
        }  # fmt: skip


def debian() -> str:
    """Return the URL of this machine's Debian packages, without the last folder."""
    text = "\n".join(registries.apt_sources("bookworm").values())
    found = re.search(r"(https?://\S+)/debian/?(?=\s|$)", text)
    assert found, f"this machine's sources of apt name no mirror with a folder debian: {text}"
    return found[1]


@contextmanager
def site_mirror(control: Control, folder: Path, wheels: Path, suite: str) -> Iterator[SiteMirror]:
    """Run the mirror beside the control node."""
    ca = Authority()
    (folder / "ca.pem").write_text(ca.pem)
    files = {}
    for name, days in ((MIRROR, 2), (EXPIRED, -1)):
        (folder / name).write_text(ca.certificate(name, days))
        files[name] = str(folder / name)
    ready = folder / "ready"
    config = Config(
        CONTROL_ADDRESS, str(wheels), debian(), files, [(3128, 0), (3129, 403)], str(ready)
    )
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    program = [sys.executable, "-m", "tests.mirror", str(folder / "config.json")]
    process = subprocess.Popen(control.bed.run_argv(program), cwd=ROOT)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None
        yield SiteMirror(folder / "ca.pem", suite)
    finally:
        process.terminate()
        process.wait(30)
