"""The undocumented parts of ansible-core and ansible-runner that ftcluster uses.

A new version may lack them; tests/unit/ansible/test_private_ansible.py names the missing parts.
"""

import contextlib
import json
import os
import shlex
import stat
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import trusted, user_name

from ftcluster.errors import UsageError


def ini_line(path: Path) -> int | None:
    """Return the line at which Ansible's INI parser fails; since 2.19 its message omits the line.

    Return None if the parser does not fail, or if this ansible-core has another parser.
    """
    try:
        from ansible._internal._datatag._tags import Origin
        from ansible.inventory.data import InventoryData
        from ansible.plugins.inventory.ini import InventoryModule

        module = InventoryModule()
        module.inventory = InventoryData()
        module._origin = Origin(path=str(path.absolute()), line_num=0)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (ImportError, AttributeError, OSError):
        return None
    try:
        module._parse(lines)
    except Exception:
        return module._origin.line_num or None
    return None


def config_file() -> str:
    """Return the path of the ansible.cfg that Ansible reads, or "".

    Ansible has a function for this, but importing it takes longer than the rest of a command.

    Raises:
        UsageError: the file in the current folder, or that folder, belongs to another user.
    """
    paths = [Path("~/.ansible.cfg").expanduser(), Path("/etc/ansible/ansible.cfg")]
    with contextlib.suppress(OSError):
        here = Path.cwd()
        # ignored in a world-writable folder, because another user could have written the file
        if not here.stat().st_mode & stat.S_IWOTH:
            paths.insert(0, here / "ansible.cfg")
            if "ANSIBLE_CONFIG" not in os.environ:
                _refuse_another_users(here / "ansible.cfg")
    if (configured := os.environ.get("ANSIBLE_CONFIG")) is not None:
        path = Path(os.path.normpath(Path(os.path.expandvars(configured)).expanduser().absolute()))
        paths.insert(0, path / "ansible.cfg" if path.is_dir() else path)
    return next((str(path) for path in paths if os.access(path, os.R_OK)), "")


def _refuse_another_users(file: Path) -> None:
    """Refuse a configuration file that an untrusted user could have written.

    The file can name plugins and programs, which Ansible runs as the user of this command.
    """
    if not os.access(file, os.R_OK):
        return
    for path in (file, file.parent):
        owner = path.stat().st_uid
        if not trusted(owner):
            raise UsageError(
                f"{path} belongs to {user_name(owner)}, who could make Ansible run any program "
                f"with your rights by naming it in {file}",
                f"start ftcluster in another folder; if you trust the file: export "
                f"ANSIBLE_CONFIG={shlex.quote(str(file))}",
            )


def write_runner_settings(folder: Path, poll_seconds: float) -> None:
    """Make ansible-runner check every `poll_seconds` for a stop, and save no output.

    The settings are in a file, because ansible-runner ignores its argument `settings` if
    `suppress_env_files` is set too.

    Args:
        folder: the `private_data_dir` of ansible-runner.
    """
    (folder / "env").mkdir()
    settings = {"pexpect_timeout": poll_seconds, "suppress_output_file": True}
    (folder / "env/settings").write_text(json.dumps(settings))


def command_file(folder: Path, ident: str) -> Path:
    """Return the file to which ansible-runner writes its command and the whole environment.

    Also create the folder of this file.
    """
    artifacts = folder / "artifacts" / ident
    artifacts.mkdir(parents=True)
    return artifacts / "command"
