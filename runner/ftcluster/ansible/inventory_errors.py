"""Finds out from ansible-inventory's stderr why it cannot read an inventory.

Ansible tries all of its plugins on a file and prints why each plugin failed. The INI parser always
comes last, so the last reason is often irrelevant. The relevant reason comes from the plugin that
the file was written for.
"""

import codecs
import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from ftcluster.ansible.ansible_words import hint_of
from ftcluster.ansible.failures import without_warnings
from ftcluster.ansible.private_ansible import ini_line
from ftcluster.errors import InventoryError, UsageError
from ftcluster.text.printable import printable

SOURCE = "Completely failed to parse inventory source "
FAILED = re.compile(r"Failed to parse inventory with '([\w.]+)' plugin: (.*)")
NOT_LOADED = re.compile(r"Error loading plugin '[\w.]+': (.*)")
# plugins of ansible-core that read hosts from files themselves
OF_FILES = ("host_list", "advanced_host_list", "script", "yaml", "ini", "toml")
YAML = (".yml", ".yaml", ".json")
PLUGIN = re.compile(r"^[\"']?plugin[\"']?\s*:\s*[\"']?([\w.]+)", re.MULTILINE)
NO_PLAYBOOK = "it contains a list, as a playbook does; name the file or folder that lists the hosts"
EXAMPLE = "write one host per line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu"
# a check of the mode is not enough: some file systems make every file executable
PROGRAMS = (b"#!", b"\x7fE")
# byte order marks of Windows editors, which Ansible reads as a part of a name
UTF8_MARK, UTF16_MARKS = codecs.BOM_UTF8, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def refuse_files(paths: Sequence[Path]) -> None:
    """Raise an error for a pipe or a file with a byte order mark, which Ansible would misread."""
    for path in paths:
        if path.is_fifo():
            raise InventoryError(
                f"inventory {path} is a pipe, but Ansible must read an inventory several times",
                "write the inventory into a file",
            )
        readable = path.is_file() and os.access(path, os.R_OK)
        start = path.read_bytes()[:3] if readable else b""
        if start.startswith(UTF16_MARKS) or (start == UTF8_MARK and path.suffix not in YAML):
            raise InventoryError(
                f"inventory {path} begins with a byte order mark",
                "save it as UTF-8 without a byte order mark (BOM)",
            )


def refuse_options(options: Iterable[tuple[str, str]]) -> None:
    """Raise an error for wrong options that Ansible would report as an error of the inventory.

    Args:
        options: name and value of each option. Messages omit values that may be passwords.
    """
    for name, value in options:
        if name == "--forks" and not (value.isdecimal() and int(value)):
            raise UsageError(f"--forks must be a whole number of at least 1, got {value!r}")
        if name not in ("--limit", "--extra-vars"):
            continue
        if value.startswith("@") and not Path(value[1:]).expanduser().exists():
            raise UsageError(f"{name} {value}: no such file")
        if name == "--extra-vars" and value.startswith(("{", "[")):
            try:
                yaml.compose(value, yaml.SafeLoader)
            except (yaml.YAMLError, RecursionError) as error:
                problem = getattr(error, "problem", None) or "it cannot be read"
                raise UsageError(
                    f"--extra-vars: invalid JSON: {problem}",
                    "write NAME=VALUE, or JSON in single quotes",
                ) from None


def unreadable(paths: Sequence[Path], stderr: str, code: int) -> InventoryError:
    """Return an error that gives the reason, the file and, if it is known, the line.

    Args:
        paths: paths of the inventories, files or folders.
        stderr: whole stderr of ansible-inventory.
        code: exit code of ansible-inventory; -N if the signal N ended it.
    """
    error = _reason(paths, stderr, code)
    return InventoryError(error.message, hint_of(error.message) or error.hint)


def _reason(paths: Sequence[Path], stderr: str, code: int) -> InventoryError:
    lines = [line.strip() for line in printable(stderr).splitlines() if line.strip()]
    source = _after(SOURCE, lines)
    if not source:  # all hosts were read, but not their variables
        reasons = [
            *(line.partition("]: ")[2] for line in lines if line.startswith("[ERROR]: ")),
            *without_warnings("\n".join(lines)).splitlines()[-1:],
            f"ansible-inventory ended with exit code {code}",
        ]
        return InventoryError(f"{named(paths)}: {reasons[0]}", seen_by(paths))
    path = next((path for path in paths if str(path.absolute()) == source), Path(source))
    by_plugin = {match[1]: match[2] for line in lines if (match := FAILED.search(line))}
    plugin = plugin_of(path)
    if path.suffix in YAML and (broken := _after("YAML parsing failed: ", lines)):
        return _with_line(path, broken, lines)
    if plugin:
        return _of_plugin(path, plugin, by_plugin, lines)
    if "script" in by_plugin and _is_program(path):
        return _of_script(path, by_plugin["script"], lines)
    if path.suffix in YAML and "yaml" in by_plugin:
        if "it should be a dictionary" in by_plugin["yaml"]:
            return InventoryError(
                f"{path} is not an inventory: its top level must map names to groups", NO_PLAYBOOK
            )
        return _with_line(path, by_plugin["yaml"], lines)
    return _of_ini(path, by_plugin.get("ini") or "Ansible recognizes no inventory in it")


def seen_by(paths: Sequence[Path]) -> str:
    """Return a hint with the command that shows how Ansible reads inventories."""
    return f"for details: ansible-inventory {' '.join(f'-i {path}' for path in paths)} --list -vvv"


def without_hosts(paths: Sequence[Path], warned: str) -> InventoryError:
    """Return the error for inventories that are readable but contain no host.

    Args:
        warned: warnings of ansible-inventory.
    """
    files = [
        file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])
    ]
    plugins = [plugin for file in files if (plugin := plugin_of(file))]
    scripts = [file for file in files if _is_program(file)]
    hint = EXAMPLE
    if plugins and all(plugin.rpartition(".")[2] == "constructed" for plugin in plugins):
        hint = (
            f"{plugins[0]} only groups hosts of other inventories; put them before it, each with -i"
        )
    elif plugins:
        hint = f"{' and '.join(plugins)} returned no hosts: check filters, regions and account"
        hint += f"; Ansible reports: {warned}" if warned else ""
    elif scripts:
        hint = f"check the script's output: {scripts[0]} --list"
    return InventoryError(f"inventory {named(paths)} contains no host", hint)


def plugin_of(path: Path) -> str:
    """Return the inventory plugin that a file configures (`plugin: amazon.aws.aws_ec2`), or ""."""
    if not path.is_file() or path.suffix not in YAML:
        return ""
    match = PLUGIN.search(path.read_text(encoding="utf-8", errors="replace"))
    return match[1] if match else ""


def named(paths: Sequence[Path]) -> str:
    """Join the paths of inventories into a string for messages."""
    return ", ".join(map(str, paths))


def warnings(stderr: str) -> str:
    """Return ansible-inventory's warnings as a single line."""
    lines = printable(stderr).splitlines()
    return " ".join(line.partition("]: ")[2] for line in lines if line.startswith("[WARNING]: "))


def _of_plugin(
    path: Path, plugin: str, reasons: dict[str, str], lines: Sequence[str]
) -> InventoryError:
    problem = next(
        (reason for name, reason in reasons.items() if name.rpartition(".")[2] not in OF_FILES), ""
    )
    loading = next((match[1] for line in lines if (match := NOT_LOADED.search(line))), "")
    hint = seen_by([path])
    if not problem:
        problem = f"no plugin accepts it, because enable_plugins in ansible.cfg lacks {plugin}"
    elif "specifies unknown plugin" in problem:
        problem = f"the plugin {plugin} is not installed here" + (f": {loading}" if loading else "")
        collection = ".".join(plugin.split(".")[:2])
        if plugin.count(".") > 1:
            hint = f"install it: ansible-galaxy collection install {collection}"
    elif "could not be verified by" in problem:
        problem = f"the plugin {plugin} does not accept a file with this name"
        hint = f"to see which names it accepts: ansible-doc -t inventory {plugin}"
    return InventoryError(f"{path}: {problem}", hint)


def _is_program(path: Path) -> bool:
    readable = path.is_file() and os.access(path, os.R_OK)
    return readable and path.read_bytes()[:2] in PROGRAMS


def _of_script(path: Path, reason: str, lines: Sequence[str]) -> InventoryError:
    stderr = next((b for a, b in pairwise(lines) if a.startswith("Standard error from inv")), "")
    reason = "it printed no JSON" if "JSON" in reason else reason.rstrip(".")
    hint = f"its error output: {stderr}" if stderr else f"check its output: {path} --list"
    return InventoryError(f"{path}, a script: {reason}", hint)


def _of_ini(path: Path, reason: str) -> InventoryError:
    if _is_program(path) and not os.access(path, os.X_OK):
        return InventoryError(f"{path} is a script that is not executable", f"chmod +x {path}")
    reason = reason.removeprefix("Failed to parse inventory: ")
    line = ini_line(path) if path.is_file() else None
    if not line:
        return InventoryError(f"{path}: {reason}")
    text = path.read_text(errors="replace").splitlines()[line - 1].strip()
    if text.startswith("[") and "]" not in text:
        reason = "the name of a group has no closing ]"
    return InventoryError(f"{path}:{line}: {reason}", f"the line is: {text}")


def _with_line(path: Path, reason: str, lines: Sequence[str]) -> InventoryError:
    number = _after(f"Origin: {path.absolute()}:", lines).partition(":")[0]
    return InventoryError(f"{path}:{number}: {reason}" if number else f"{path}: {reason}")


def _after(marker: str, lines: Sequence[str]) -> str:
    return next((line.partition(marker)[2] for line in lines if marker in line), "")
