"""Runs a command in a fresh clone of this checkout, as process 1 of a container without rights.

    sudo python3 -m tests.container debian12 ./test

Debian 12, 13 or 14 (testing) with apt, git and Python: no compiler, systemd or network tools. It
has the rights that docker gives: its capabilities and system calls, no new privileges, /sys
read-only, 64 MB in /dev/shm. It uses this machine's network and package indexes. Only committed
files are used. Needs root, and the packages of tests/testbed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import seccomp
from tests.testbed import registries, rootfs
from tests.testbed.settings import Settings
from tests.testbed.shell import TestbedError, environment, require_root, require_tools, run

ROOT = Path(__file__).parents[1]
SUITES = {"debian12": "bookworm", "debian13": "trixie", "debian14": "forky"}
PACKAGES = ["apt", "ca-certificates", "git", "python3", "python3-venv"]
# the capabilities that docker gives to a container by default
CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "net_bind_service", "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
HOMES = {"root": "/root", "user": "/home/user"}
ACCOUNT = "user:x:1000:1000::/home/user:/bin/bash\n"
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child")
# Arguments: $1 the Debian folder, $2 a folder for written files, $3 folders with packages; the rest
# is the program.
START = """
set -eu
debian=$1 own=$2 folders=$3; shift 3
root=$own/root
mkdir "$own/work" "$root"
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$debian,upperdir=$own/upper,workdir=$own/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for name in full null random tty urandom zero; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,size=64m shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
for folder in $folders; do
  mkdir -p "$root$folder"
  mount --bind -o ro "$folder" "$root$folder"
done
hostname container
cd "$root"
pivot_root . mnt
umount -l /mnt
exec "$@"
"""


def main() -> int:
    """Entry point; returns the command's exit code."""
    parser = argparse.ArgumentParser(prog="tests.container", description=__doc__.splitlines()[0])
    parser.add_argument("debian", choices=SUITES)
    parser.add_argument("--without", action="append", default=[], metavar="PACKAGE",
                        help="one that apt does not install")  # fmt: skip
    parser.add_argument("--user", action="store_const", const="user", default="root",
                        help="as an ordinary user")  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command or options.command[0].startswith("-"):
        parser.error("which command? Options come before the Debian")
    try:
        require_root()
        require_tools()
        debian = _debian(SUITES[options.debian])
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ftcluster-container-") as own:
            upper = Path(own, "upper")
            _write(upper, debian, options.user, options.without)
            argv = _argv(debian, Path(own), options.user, options.command)
            return subprocess.run(argv, env=environment(), check=False).returncode
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _debian(suite: str) -> Path:
    settings = Settings(suite=suite)
    sources = registries.apt_sources(suite)
    return rootfs.cached(settings, f"container-{suite}", PACKAGES, sources, lambda _: None)


def _write(upper: Path, debian: Path, user: str, without: list[str]) -> None:
    """Write the container's files above its Debian: host names, the clone, package settings."""
    etc = upper / "etc"
    (etc / "apt/preferences.d").mkdir(parents=True)
    shutil.copy(registries.resolv_conf(), etc / "resolv.conf")
    (etc / "hostname").write_text("container\n")
    (etc / "hosts").write_text("127.0.0.1 localhost container\n")
    (etc / "passwd").write_text((debian / "etc/passwd").read_text() + ACCOUNT)
    pins = [f"Package: {name}\nPin: release *\nPin-Priority: -1\n" for name in without]
    (etc / "apt/preferences.d/without").write_text("\n".join(pins))
    home = upper / HOMES[user].lstrip("/")
    home.mkdir(parents=True)
    trusted = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    clone = ("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", home / "ftcluster")
    run(*clone, env=trusted)
    if user != "root":
        run("chown", "-R", "1000:1000", home)


def _argv(debian: Path, own: Path, user: str, command: list[str]) -> list[str]:
    held = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
    become = [] if user == "root" else ["--reuid", "1000", "--regid", "1000", "--clear-groups"]
    variables = [
        *registries.environment_file().split("\n"),
        f"HOME={HOMES[user]}",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"TERM={os.environ.get('TERM', 'dumb')}",
    ]
    return [
        "setpriv", "--pdeathsig", "KILL",
        "unshare", *NAMESPACES, "sh", "-c", START, "sh", str(debian), str(own),
        " ".join(registries.pip_folders()),
        "setpriv", "--bounding-set", held, "--no-new-privs", *become,
        "env", "-i", *filter(None, variables),
        "python3", "-I", "-c", Path(seccomp.__file__).read_text(),
        "sh", "-c", 'cd "$HOME/ftcluster" && exec "$@"', "sh", *command,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
