"""Ansible's settings for ftcluster, unless the user has set them."""

import configparser
import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ftcluster.ansible.inventory import NO
from ftcluster.ansible.private_ansible import config_file
from ftcluster.ansible.programs import program, utf8_locale
from ftcluster.errors import FtclusterError

FORKS = 32  # number of hosts that Ansible works on in parallel
TIMEOUT_SECONDS = 30  # limit for sudo, which is slow while the host writes to a slow disk
# Ansible's default minus -C (compression), because wheels are already compressed. The last two
# options end a connection to a host without power within 15 s; otherwise Ansible waits more than
# 10 minutes.
SSH_ARGS = (
    "-o ControlMaster=auto -o ControlPersist=60s -o ConnectTimeout=10 "
    "-o ServerAliveInterval=5 -o ServerAliveCountMax=2"
)
# sshd refuses some connections if more than 10 have not logged in yet (MaxStartups 10:30:100,
# sshd_config(5)). This can happen on a jump host, so connections to more than 10 hosts are retried.
# With fewer hosts there are no retries, because Ansible would also retry hosts that are off.
AT_ONCE, RETRIES = 10, 3
# Since 2.21, Ansible puts a socket below TMPDIR; a socket's path may have 107 bytes: unix(7)
LONGEST_TEMP = 107 - len("/pymp-12345678/listener-12345678")
# Ansible's default folder for the sockets of ssh, and the longest folder for them: Ansible adds a
# name of 10 letters, and ssh adds 17 letters while it creates a socket
SOCKETS = "~/.ansible/cp"
LONGEST_SOCKETS = 107 - len("/0123456789.0123456789abcdef")
SOCKET_VARIABLE = "ANSIBLE_SSH_CONTROL_PATH_DIR"
# These settings override the user's. Otherwise, the result of any module could set variables (for
# example the files to send), and facts of earlier playbooks would be used. In addition, Ansible's
# file cache leaks a descriptor each time facts of a host are set, five times in a setup.
FORCED = {"ANSIBLE_INJECT_FACT_VARS": "false", "ANSIBLE_CACHE_PLUGIN": "memory"}
# Section and key of each setting in ansible.cfg
IN_FILE = {
    "ANSIBLE_PIPELINING": ("ssh_connection", "pipelining"),
    "ANSIBLE_FORKS": ("defaults", "forks"),
    "ANSIBLE_TIMEOUT": ("defaults", "timeout"),
    "ANSIBLE_SSH_ARGS": ("ssh_connection", "ssh_args"),
    "ANSIBLE_LOCAL_TEMP": ("defaults", "local_tmp"),
    "ANSIBLE_SSH_RETRIES": ("ssh_connection", "retries"),
}
# Variables that disable host key checking; if both are set, the second one counts
CHECKING = ("ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_SSH_HOST_KEY_CHECKING")
CHECKING_IN_FILE = (("defaults", "host_key_checking"), ("ssh_connection", "host_key_checking"))


def ansible_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables for Ansible, except variables that the environment or ansible.cfg sets."""
    users = _set_in_file()
    wanted = {
        "FTCLUSTER_PID": str(os.getpid()),  # the owner of the hosts' setup lock
        "ANSIBLE_PIPELINING": "true",  # one SSH round trip per task instead of several
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
        "ANSIBLE_FORKS": str(FORKS),
        "ANSIBLE_TIMEOUT": str(TIMEOUT_SECONDS),
        "ANSIBLE_SSH_ARGS": SSH_ARGS,
        # always set, because ansible-runner disables the check if this variable is missing
        CHECKING[0]: _checking_in_file()[0] or "true",
        **(changes or {}),
    }
    if SOCKET_VARIABLE not in wanted and _lacks_sockets():
        wanted[SOCKET_VARIABLE] = str(socket_folder())
    settings = {
        key: value for key, value in wanted.items() if key not in os.environ and key not in users
    }
    programs = str(Path(program("ansible-playbook")).parent)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    short = {"TMPDIR": "/tmp"} if len(tempfile.gettempdir()) > LONGEST_TEMP else {}
    return {**settings, **FORCED, **short, **utf8_locale(), "PATH": path}


def _lacks_sockets() -> bool:
    """Return True if the user set no socket folder and the path of Ansible's folder is too long."""
    _, parser = _own_file()
    names = ("control_path", "control_path_dir")
    if any(parser.has_option("ssh_connection", name) for name in names):
        return False
    default = os.path.realpath(Path(SOCKETS).expanduser())  # as Ansible resolves it
    return "ANSIBLE_SSH_CONTROL_PATH" not in os.environ and not _fits(default)


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) <= LONGEST_SOCKETS


def socket_folder() -> Path:
    """Return a private folder with a short path for the sockets of ssh; create it if it is missing.

    Raises:
        FtclusterError: another user may open the folder.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    name = f"ftcluster-ssh-{os.geteuid()}"
    usable = os.access(runtime, os.W_OK) and _fits(f"{os.path.realpath(runtime)}/{name}")
    folder = Path(runtime if usable else "/tmp", name)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise FtclusterError(
            f"{folder}: other users can open this folder, but the sockets of ssh must be private",
            "remove the folder, or name another folder with a short path: export "
            f"{SOCKET_VARIABLE}=DIR",
        )
    return folder


def for_hosts(count: int) -> dict[str, str]:
    """Return the variables that `ansible_environment` must change for `count` hosts."""
    return {"ANSIBLE_SSH_RETRIES": str(RETRIES)} if count > AT_ONCE else {}


def users_ssh_args() -> str:
    """Return the options that Ansible passes to ssh: the user's options, or else ftcluster's."""
    _, parser = _own_file()
    of_file = parser.get(*IN_FILE["ANSIBLE_SSH_ARGS"], fallback=SSH_ARGS)
    return os.environ.get("ANSIBLE_SSH_ARGS", of_file)


def keys_unchecked_by() -> str:
    """Return the user's setting that disables host key checking in Ansible, or ""."""
    for name in reversed(CHECKING):
        if value := os.environ.get(name):
            return f"{name}={value} in the environment" if value.lower() in NO else ""
    value, where = _checking_in_file()
    return f"host_key_checking={value} in {where}" if value.lower() in NO else ""


def _checking_in_file() -> tuple[str, str]:
    """Return the value of host key checking in the user's ansible.cfg, and that file's path."""
    file, parser = _own_file()
    values = [parser.get(section, key, fallback="") for section, key in CHECKING_IN_FILE]
    return next((value for value in reversed(values) if value), ""), file


def inventories_of_ansible() -> tuple[list[str], str]:
    """Return the paths of Ansible's default inventories, and the variable or file that sets them.

    Return ([], "") if neither the environment nor ansible.cfg names an inventory.
    """
    name = "ANSIBLE_INVENTORY"
    if value := os.environ.get(name):
        return _paths(value, Path.cwd()), name
    file, parser = _own_file()
    paths = _paths(parser.get("defaults", "inventory", fallback=""), Path(file).parent)
    return (paths, file) if paths else ([], "")


def _paths(value: str, folder: Path) -> list[str]:
    """Return the absolute paths in a setting, as Ansible reads it: separated by commas."""
    names = value.replace("{{CWD}}", str(Path.cwd())).split(",")
    expanded = (os.path.expandvars(name.strip()) for name in names if name.strip())
    return [os.path.normpath(folder / Path(name).expanduser()) for name in expanded]


def _set_in_file() -> set[str]:
    """Return the names in IN_FILE that the user's ansible.cfg sets."""
    _, parser = _own_file()
    return {
        variable for variable, (section, key) in IN_FILE.items() if parser.has_option(section, key)
    }


def _own_file() -> tuple[str, configparser.ConfigParser]:
    """Return the path of the user's ansible.cfg, or "", and its content."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    file = config_file()
    with contextlib.suppress(configparser.Error):  # Ansible itself reports it
        parser.read(file)
    return file, parser
