"""Reads the command line of a user's own script, and determines where the script runs."""

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcluster.errors import UsageError

USAGE = "ftcluster run [--nodes N] [--ranks-per-host N] [--fast] -- SCRIPT ARGS ..."
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
LAUNCHERS = {
    "torchrun", "mpirun", "mpiexec", "accelerate", "accelerate-launch", "deepspeed", "ipexrun",
    "horovodrun", "srun", "numactl", "taskset",
    # modules
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
    "intel_extension_for_pytorch.cpu.launch",
}  # fmt: skip


@dataclass(frozen=True)
class Script:
    """A user's script: the program that every rank runs.

    Attributes:
        name: name that becomes part of the run's id.
        program: arguments of the hosts' Python: path or `-m MODULE`, then the script's arguments.
        arguments: arguments that are passed to the script.
        source: file of the script on this machine; None if the script is only on the hosts.
        folder: folder on this machine that is copied to the hosts, or None. The ranks start in the
            copy.
        start: folder on the hosts in which the ranks start if nothing is copied; "" for an empty
            folder inside the run's folder.
    """

    name: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    source: Path | None
    folder: Path | None
    start: str = ""


def read_words(words: Sequence[str], on_hosts: bool, here: Path) -> Script:
    """Read the script from the arguments after `--`.

    Args:
        words: arguments after `--`.
        on_hosts: True if the script is already on the hosts.
        here: current folder.

    Raises:
        UsageError: the script does not exist, or the arguments do not begin with a script.
    """
    if not words:
        raise UsageError("no script is named", USAGE)
    first, *rest = words
    _no_launcher(words)
    if first == "-m":
        return _module(rest, on_hosts, here)
    if first.startswith("-"):
        raise UsageError(
            f"'{first}' is not a script; -m MODULE is the only supported option of Python", USAGE
        )
    path = Path(first)
    if on_hosts:
        if not path.is_absolute():
            raise UsageError(f"--on-hosts needs an absolute path on the hosts, not '{first}'")
        return Script(path.stem, tuple(words), tuple(rest), None, None, str(path.parent))
    path = here / path
    if path.is_dir():
        raise UsageError(f"{first} is a folder; name the script in it", USAGE)
    if not path.is_file():
        scripts = [file.name for file in path.parent.glob("*.py")]
        near = difflib.get_close_matches(path.name, scripts, n=1)
        guess = f"did you mean {Path(first).with_name(near[0])}? " if near else ""
        raise UsageError(
            f"script {first} does not exist here",
            f"{guess}a script on the hosts needs --on-hosts and an absolute path; a module needs "
            "-m",
        )
    folder = Path(path.parent.resolve())
    return Script(path.stem, (path.name, *rest), tuple(rest), folder / path.name, folder)


def _module(words: list[str], on_hosts: bool, here: Path) -> Script:
    if not words or not _MODULE.fullmatch(words[0]):
        got = f", not '{words[0]}'" if words else ""
        raise UsageError(f"-m needs the name of a Python module{got}", USAGE)
    module, *rest = words
    program = ("-m", module, *rest)
    inside = here.joinpath(*module.split("."))
    candidates = (inside.with_suffix(".py"), inside / "__main__.py")
    source = next((path for path in candidates if path.is_file()), None)
    if on_hosts or source is None:
        return Script(module, program, tuple(rest), None, None)
    return Script(module, program, tuple(rest), source, here.resolve())


def _no_launcher(words: Sequence[str]) -> None:
    """Raise an error if a launcher or Python precedes the script; the hint shows the fix."""
    first, *rest = words
    starts = [index for index, word in enumerate(rest) if word == "-m" or word.endswith(".py")]
    script = rest[starts[0] :] if starts else rest if _PYTHON.fullmatch(Path(first).name) else []
    hint = f"ftcluster run -- {shlex.join(script)}" if script else USAGE
    if _PYTHON.fullmatch(Path(first).name):
        raise UsageError(f"remove {first}: the hosts' own Python runs the script", hint)
    name = rest[0] if first == "-m" and rest else Path(first).name
    if name in LAUNCHERS:
        raise UsageError(
            f"remove {name} and its options: ftcluster starts and binds the ranks itself", hint
        )


def doubtful_paths(script: Script, here: Path, same_machine: bool) -> list[str]:
    """Return notes about arguments that are paths on this machine but may not exist on hosts.

    Args:
        same_machine: True if all ranks run on this machine.
    """
    return [
        note
        for argument in script.arguments
        for value in {argument, argument.partition("=")[2]}
        if (note := _doubtful(value, script.folder, here, same_machine))
    ]


def _doubtful(value: str, folder: Path | None, here: Path, same_machine: bool) -> str:
    if not value or value.isdecimal() or "\0" in value:
        return ""
    path = Path(value)
    try:
        if not (here / path).exists() or (path.is_absolute() and same_machine):
            return ""
    except OSError:  # the text is too long for a path
        return ""
    if folder is None:
        return "" if same_machine else f"{value} exists here, but is not copied to the hosts"
    inside = (here / path).resolve()
    if inside.is_relative_to(folder):
        if not path.is_absolute() and (folder / path).exists():
            return ""
        return f"{value}: the ranks start in a copy of {folder}; write {inside.relative_to(folder)}"
    instead = f"write {inside}" if same_machine else "use an absolute path that is on every host"
    return f"{value} exists here, but only the script's folder is copied; {instead}"
