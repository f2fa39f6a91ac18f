"""The commands on pages: commands in code blocks, and ftcluster commands in the text."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# A line of a block is a command if it begins like this; other lines are output or a file.
PROGRAMS = (
    "ansible", "ansible-doc", "ansible-galaxy", "ansible-playbook", "ansible-vault", "apt", "aws",
    "az", "cd", "cp", "curl", "dnf", "docker", "export", "ftcluster", "gcloud", "git", "hf",
    "kubectl", "mpirun", "numactl", "pip", "pipx", "python", "python3", "rsync", "scp", "sha256sum",
    "source", "ssh", "ssh-copy-id", "ssh-keygen", "ssh-keyscan", "sudo", "tar", "torchrun", "uv",
)  # fmt: skip
_PLACE = re.compile(r"(?:~|\.{0,2}[\w.-]*)/\S+")  # ./test, scripts/docs, ~/ftcluster/bin/pip
_LANGUAGES = ("", "text", "sh", "console")
_SYNOPSIS = str.maketrans("", "", "[]")
_CLOUDS = ("aws", "az", "gcloud")
_VALUES = {"N": "1", "SECONDS": "30"}


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        where: page and line, such as docs/run.md:3.
        text: the command as the page has it, without prompt and comment.
        inline: True if it stands in a sentence, where it may be a command's name only.
    """

    where: str
    text: str
    inline: bool = False

    @property
    def words(self) -> list[str]:
        """Return the arguments as a shell splits them, without variables and the program's folder.

        Brackets and dots of a synopsis are removed, and N is replaced by a number.
        """
        text = self.text if self.inline else self.text.replace("[--", "--").replace("] ", " ")
        words = shlex.split(text.translate(_SYNOPSIS) if "=[" not in text else text)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        words = [_VALUES.get(word, word) for word in words if word not in ("...", "\u2026")]
        return [Path(words[0]).name, *words[1:]]

    @property
    def kinds(self) -> list[str]:
        """Return the parts of the command that tests must run: `setup --stack`; else all.

        Clouds' and benchmarks' own programs are run by no test: only their names are returned.
        """
        if self.words[0] in _CLOUDS:
            return [self.words[0]]
        if measurement := re.search(r"-m (bench\.\w+)", self.text):
            return [measurement[1]]
        return kinds(self.words[1:]) if self.words[0] == "ftcluster" else [self.text]


def kinds(words: Sequence[str]) -> list[str]:
    """Return command and options in the words after `ftcluster`: `setup`, `setup --stack`."""
    words = words[: words.index("--")] if "--" in words else words
    plain = [word for word in words if not word.startswith("-")]
    verb = " ".join(plain[: 2 if plain[:1] in (["bench"], ["export"], ["hosts"]) else 1])
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    return [verb, *(f"{verb} {option}".strip() for option in options)]


def commands(page: Path, root: Path) -> list[Command]:
    """Return every command of a Markdown page in order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(root))
    found = []
    for number, line, in_code in _lines(text):
        if in_code:
            found += [Command(f"{name}:{number}", part) for part in _parts(line)]
        else:
            found += [
                Command(f"{name}:{number}", code, inline=True)
                for code in re.findall(r"`((?:[A-Z_]+=\S+ )?ftcluster [a-z-][^`]*)`", line)
            ]
    return found


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the number and text of a page's lines, and True if a line is shell code."""
    language: str | None = None
    begun, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if fence := re.match(r"\s*```(.*)", line):
            language = None if language is not None else fence[1]
            continue
        block = re.match(r" {4}\S", line) or held  # more indented lines continue some output
        in_code = language in _LANGUAGES or (language is None and bool(block))
        if not in_code:
            if language is None:
                yield number, line, False
            continue
        begun = begun or number
        held += line.strip()
        if held.endswith("\\"):
            held = held[:-1]
            continue
        yield begun, held, True
        begun, held = 0, ""


def _parts(line: str) -> list[str]:
    """Return the commands in a line of code, or nothing if the line is not a command."""
    line = re.split(r"\s+# ", line.removeprefix("$ "))[0].strip()
    words = re.sub(r"^(?:[A-Z_]+=\S* )+", "", line).split(" ")
    # otherwise the line is part of a picture
    is_program = words[0] in PROGRAMS and len(words) > 1 and "" not in words
    if not is_program and not _PLACE.fullmatch(words[0]):
        return []
    return [part.strip() for part in re.split(r" (?:&&|;|\|) ", line)]
