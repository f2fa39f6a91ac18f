"""The root file system under every host's disk: built once by mmdebstrap, then cached.

The cache has a root file system for each set of suite, packages and registry settings. It contains
an operator account and the packages that Ansible needs on a host, and no files of the project.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from . import registries
from .settings import OPERATOR, OPERATOR_ID, Settings
from .shell import TestbedError, environment, run

log = logging.getLogger(__name__)

VERSION = "2"  # change the version when the steps below change
PACKAGES = (
    *("systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "python3-venv"),
    *("ca-certificates", "iproute2", "iputils-ping", "netbase", "procps"),
)
# settings that save time on disks that are thrown away
FASTER = {
    "etc/dpkg/dpkg.cfg.d/unsynced": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/untranslated": 'Acquire::Languages "none";\n',
}
MASKED = (
    "apt-daily.timer",  # a timer that fires at boot would hold dpkg's lock when Ansible needs it
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "systemd-networkd.service",  # the testbed assigns the address
)


def get(settings: Settings) -> Path:
    """Return the root file system for these settings; build it if the cache has none."""
    packages = sorted({*PACKAGES, *settings.extra})
    mirror = ""
    if settings.suite in registries.UBUNTU:
        mirror = registries.ubuntu_mirror(registries.apt_sources(registries.codename()))
        sources = registries.ubuntu_sources(mirror, settings.suite)
        packages = sorted({*packages, "apt"})  # the variant contains apt only on Debian
    else:
        sources = registries.apt_sources(settings.suite)
    return cached(settings, settings.suite, packages, sources, _make_host, mirror)


def cached(
    settings: Settings,
    name: str,
    packages: list[str],
    sources: dict[str, str],
    adapt: Callable[[Path], None],
    mirror: str = "",
) -> Path:
    """Return the cached root file system whose name has this beginning; build it if necessary.

    Args:
        sources: files of apt sources, by name.
        adapt: function that changes the new root file system.
        mirror: mirror of Ubuntu, if the root file system is Ubuntu's.
    """
    done = settings.cache / f"{name}-{_key(packages, sources)}"
    settings.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (settings.cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # testbeds of all names use the same cache
        if done.exists():
            return done
        log.info("building the root file system of %s (once; up to a minute)", settings.suite)
        for stale in settings.cache.glob("*.part"):
            shutil.rmtree(stale)
        part = settings.cache / f"{done.name}.part"
        keyring = _ubuntu_keyring(settings, mirror) if mirror else None
        _bootstrap(settings, packages, sources, part, keyring)
        reach_registries(part)
        adapt(part)
        part.rename(done)  # only complete root file systems have the final name
    return done


def _key(packages: list[str], sources: dict[str, str]) -> str:
    """Return a name that depends on all inputs."""
    parts = [
        VERSION,
        *packages,
        *sources.values(),
        registries.apt_settings(),
        registries.pip_conf(),
        registries.environment_file(),
        *(path.read_text() for path in registries.certificates()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _ubuntu_keyring(settings: Settings, mirror: str) -> Path:
    """Return the keys that sign Ubuntu's archive, for which Debian has no package."""
    package, folder = settings.cache / "ubuntu-keyring.deb", settings.cache / "ubuntu-keyring"
    url, checksum = f"{mirror}/{registries.KEYRING}", f"SHA256:{registries.KEYRING_SHA256}"
    fetched = run("/usr/lib/apt/apt-helper", "download-file", url, package, checksum, check=False)
    if fetched.returncode:
        raise TestbedError(
            f"no Ubuntu at {mirror}; set FTCLUSTER_TESTBED_UBUNTU to another mirror\n"
            + fetched.stderr.strip()
        )
    run("dpkg-deb", "--extract", package, folder)
    return folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg"


def _bootstrap(
    settings: Settings,
    packages: list[str],
    sources: dict[str, str],
    part: Path,
    keyring: Path | None,
) -> None:
    apt_conf = settings.cache / "apt.conf"
    apt_conf.write_text(registries.apt_settings())
    source_files = [settings.cache / name for name in sources]
    for path in source_files:
        path.write_text(sources[path.name])
    mmdebstrap: list[str | Path] = [
        "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}",
        f"--aptopt={apt_conf}", "--dpkgopt=force-unsafe-io",
        *([f"--keyring={keyring}"] if keyring else []), settings.suite, part, *source_files,
    ]  # fmt: skip
    # In separate namespaces that end with this process, so a killed build leaves no mount.
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    done = run("setpriv", "--pdeathsig", "KILL", *alone, *mmdebstrap, check=False, env=quiet)
    log_file = settings.cache / "mmdebstrap.log"
    log_file.write_text(done.stdout + done.stderr)
    if done.returncode:
        shutil.rmtree(part, ignore_errors=True)
        said = done.stderr.strip().splitlines()
        last_words = "\n".join([line for line in said if line.startswith("E: ")] or said[-5:])
        raise TestbedError(f"mmdebstrap failed; the whole log is {log_file}\n{last_words}")


def reach_registries(root: Path) -> None:
    """Configure a fresh Debian to use this machine's registries."""
    (root / "etc/environment").write_text(registries.environment_file())  # pam_env reads this file
    if conf := registries.pip_conf():
        (root / "etc/pip.conf").write_text(conf)
    for certificate in registries.certificates():
        shutil.copy(certificate, root / "usr/local/share/ca-certificates")
    _chroot(root, "update-ca-certificates")
    for name, text in FASTER.items():
        (root / name).write_text(text)


def _make_host(root: Path) -> None:
    """Turn the fresh Debian into a host that boots here."""
    for key in root.glob("etc/ssh/ssh_host_*"):
        key.unlink()  # each host makes its own key
    (root / "etc/machine-id").write_text("")  # each host makes its own id at its first boot
    units = root / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    # Password "*": no password matches, but unlike "!" the account is not locked for sshd.
    account = ("--create-home", "--uid", str(OPERATOR_ID), "--shell", "/bin/bash")
    _chroot(root, "useradd", *account, "--password", "*", OPERATOR)
    sudoers = root / "etc/sudoers.d" / OPERATOR
    sudoers.write_text(f"{OPERATOR} ALL=(ALL:ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)


def _chroot(root: Path, *cmd: str) -> None:
    run("chroot", root, *cmd, env={"PATH": environment()["PATH"], "LC_ALL": "C"})
