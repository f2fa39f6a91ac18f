"""A user's own script: what the words after `--` mean, and where it will be on the hosts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcluster.errors import UsageError

USAGE = "ftcluster run [--nodes N] [--ranks-per-host N] -- SCRIPT ARGS ..."
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
LAUNCHERS = {
    "torchrun": "it starts one rank on each of its cores",
    "mpirun": "it starts the ranks with mpirun itself",
    "mpiexec": "it starts the ranks with mpirun itself",
    "accelerate": "Accelerate finds its ranks in the environment",
    "deepspeed": "it starts the ranks itself",
    "ipexrun": "it starts and binds the ranks itself",
}


@dataclass(frozen=True)
class Script:
    """What every rank runs, and what is copied for it.

    Attributes:
        name: what the run is called after.
        program: words for the hosts' Python: a path and its arguments, or -m, a module and its.
        arguments: those of the words that are the script's own.
        source: the file of this machine that is run, or None where it is on the hosts only.
        folder: the folder of this machine that is copied and that the ranks start in, or None.
        start: where the ranks start if no folder is copied: a folder of the hosts, or "" for an
            empty one of the run's own.
    """

    name: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    source: Path | None
    folder: Path | None
    start: str = ""


def read_words(words: Sequence[str], on_hosts: bool, here: Path) -> Script:
    """What a user means who writes these words after `--`.

    Args:
        words: the script and its arguments.
        on_hosts: whether the script is on the hosts already.
        here: the current folder.

    Raises:
        UsageError: there is no such script, or it is something else; says what to write.
    """
    if not words:
        raise UsageError("no script is given", USAGE)
    first, *rest = words
    if first == "-m":
        return _module(rest, on_hosts, here)
    _no_launcher(first, rest)
    if first.startswith("-"):
        raise UsageError(
            f"'{first}' is not a script; of Python's own options there is -m MODULE", USAGE
        )
    path = Path(first)
    if on_hosts:
        if not path.is_absolute():
            raise UsageError(f"--on-hosts takes an absolute path on the hosts, not '{first}'")
        return Script(path.stem, tuple(words), tuple(rest), None, None, str(path.parent))
    path = here / path
    if path.is_dir():
        raise UsageError(f"{first} is a folder; give the script in it", USAGE)
    if not path.is_file():
        raise UsageError(
            f"script {first} does not exist here",
            "one that is on the hosts already: --on-hosts and its absolute path; a module: -m NAME",
        )
    folder = Path(path.parent.resolve())
    return Script(path.stem, (path.name, *rest), tuple(rest), folder / path.name, folder)


def _module(words: list[str], on_hosts: bool, here: Path) -> Script:
    if not words or not _MODULE.fullmatch(words[0]):
        what = f"'{words[0]}' is not one" if words else "there is none"
        raise UsageError(f"-m takes the name of a Python module; {what}", USAGE)
    module, *rest = words
    program = ("-m", module, *rest)
    inside = here.joinpath(*module.split("."))
    candidates = (inside.with_suffix(".py"), inside / "__main__.py")
    source = next((path for path in candidates if path.is_file()), None)
    if on_hosts or source is None:
        return Script(module, program, tuple(rest), None, None)
    return Script(module, program, tuple(rest), source, here.resolve())


def _no_launcher(first: str, rest: list[str]) -> None:
    """Raise if somebody has written a launcher, or Python, in front of the script."""
    name = Path(first).name
    if _PYTHON.fullmatch(name) and not first.endswith(".py"):
        raise UsageError(
            f"leave out {first}: the script is run by the hosts' own Python",
            f"ftcluster run -- {' '.join(rest)}" if rest else USAGE,
        )
    if name in LAUNCHERS:
        raise UsageError(f"leave out {first} and its options: {LAUNCHERS[name]}", USAGE)


def doubtful_paths(script: Script, here: Path, same_machine: bool) -> list[str]:
    """Sentences about arguments that are paths here, and may be none where the ranks start.

    Args:
        script: with its arguments.
        here: the current folder, which relative paths start from.
        same_machine: whether the ranks run on this machine only.
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
    except OSError:  # a text too long for a path
        return ""
    if folder is None:
        where = "and may not on the hosts"
        return "" if same_machine else f"{value} exists here {where}: nothing is copied"
    inside = (here / path).resolve()
    if inside.is_relative_to(folder):
        if not path.is_absolute() and (folder / path).exists():
            return ""
        return f"{value}: the ranks start in a copy of {folder}; write {inside.relative_to(folder)}"
    instead = f"write {inside}" if same_machine else "give an absolute path that is on every host"
    return f"{value} exists here, outside of the script's folder, which alone is copied; {instead}"
