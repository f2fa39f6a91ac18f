"""What is used of ansible-core and ansible-runner that they do not document.

A new version may lack it; tests/unit/ansible/test_private_ansible.py names what it lacks.
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
    """The line at which Ansible's INI parser fails, which its message lacks since 2.19.

    None if there is none, or this ansible-core has another parser.
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
    """The path of the ansible.cfg that Ansible reads, or "".

    Ansible's own function does the same; to import it takes longer than all else of a command.

    Raises:
        UsageError: Ansible would read another user's file only because it is in the current folder.
    """
    paths = [Path("~/.ansible.cfg").expanduser(), Path("/etc/ansible/ansible.cfg")]
    with contextlib.suppress(OSError):
        here = Path.cwd()
        if not here.stat().st_mode & stat.S_IWOTH:  # else anybody could have put it there
            paths.insert(0, here / "ansible.cfg")
            if "ANSIBLE_CONFIG" not in os.environ:
                _refuse_another_users(here / "ansible.cfg")
    if (given := os.environ.get("ANSIBLE_CONFIG")) is not None:
        path = Path(os.path.normpath(Path(os.path.expandvars(given)).expanduser().absolute()))
        paths.insert(0, path / "ansible.cfg" if path.is_dir() else path)
    return next((str(path) for path in paths if os.access(path, os.R_OK)), "")


def _refuse_another_users(file: Path) -> None:
    """Refuse a configuration that a user could have written who is not trusted.

    It names plugins and programs, which Ansible runs as the user of this command.
    """
    if not os.access(file, os.R_OK):
        return
    for path in (file, file.parent):
        owner = path.stat().st_uid
        if not trusted(owner):
            raise UsageError(
                f"{path} belongs to {user_name(owner)}, and {file} may name programs that Ansible "
                "runs as you",
                f"start ftcluster in another folder; if you trust the file: export "
                f"ANSIBLE_CONFIG={shlex.quote(str(file))}",
            )


def write_runner_settings(folder: Path, poll_seconds: float) -> None:
    """Have ansible-runner ask every `poll_seconds` whether to stop, and keep no file of the output.

    A file, because its argument `settings` has no effect together with `suppress_env_files`.

    Args:
        folder: its `private_data_dir`.
    """
    (folder / "env").mkdir()
    settings = {"pexpect_timeout": poll_seconds, "suppress_output_file": True}
    (folder / "env/settings").write_text(json.dumps(settings))


def command_file(folder: Path, ident: str) -> Path:
    """The file that ansible-runner writes its command and our whole environment to.

    Makes its folder.
    """
    artifacts = folder / "artifacts" / ident
    artifacts.mkdir(parents=True)
    return artifacts / "command"
