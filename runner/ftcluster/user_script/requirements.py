"""Reads a script's own requirements file, in pip's Requirements File Format."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import linux_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ftcluster.errors import UsageError
from ftcluster_common.given_files import GivenFileError, read_given

# matches only at the beginning of a run of blanks: a line may have a million blanks
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*$")
_HASH = re.compile(r"(?<!\s)\s+--hash(?:=|\s)\s*(\w+):(\w+)")
_NEXT_OPTION = re.compile(r"(?<!\s)\s+(?=--)")
_VARIABLE = re.compile(r"\$\{[^}]*\}")  # pip would replace ${NAME} with the variable's value
_OPTION = re.compile(r"(-\w|--[\w-]+)(?:=|\s*)(.*)")
_FILE, _CONSTRAINTS = ("-r", "--requirement"), ("-c", "--constraint")
_FOLDER = ("-f", "--find-links")
_WHEELS_ONLY = "--only-binary"
_PASSED_ON = {*_FOLDER, "-i", "--index-url", "--extra-index-url", "--no-index", "--pre",
              "--prefer-binary", "--trusted-host", _WHEELS_ONLY}  # fmt: skip
_ALWAYS = {"--require-hashes"}  # options that are always in effect


@dataclass(frozen=True)
class Line:
    """A line of a requirements file that names a package.

    Attributes:
        where: file:line.
        hashes: SHA-256 of the accepted files; empty if any file is accepted.
        constraint: True if the line only limits the version of a package that other packages need.
    """

    requirement: Requirement
    where: str
    hashes: frozenset[str]
    constraint: bool

    @property
    def name(self) -> str:
        """The package's normalized name."""
        return str(canonicalize_name(self.requirement.name))

    def is_for(self, python: str) -> bool:
        """Return True if the line applies to hosts with this version of Python."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(linux_environment(python))


@dataclass(frozen=True)
class Requirements:
    """The lines of a requirements file and of the files that it includes.

    Attributes:
        options: lines with pip's options for package indexes.
    """

    path: Path
    lines: tuple[Line, ...]
    options: tuple[str, ...]

    def hashes(self, python: str) -> dict[str, frozenset[str]]:
        """Return the accepted SHA-256 values by package name, for packages with hashes."""
        hashes: dict[str, frozenset[str]] = {}
        for line in self.lines:
            if line.hashes and line.is_for(python):
                hashes[line.name] = hashes.get(line.name, frozenset()) | line.hashes
        return hashes

    def allows_prerelease(self, name: str) -> bool:
        """Return True if the file requests a pre-release version of the package `name`."""
        return "--pre" in self.options or any(
            line.requirement.url or line.requirement.specifier.prereleases
            for line in self.lines
            if line.name == name
        )

    @property
    def wheels_only(self) -> bool:
        """True if no package may be built from source."""
        return any(option.startswith(_WHEELS_ONLY) for option in self.options)

    def limited(self, needed: Requirement, python: str) -> Requirement:
        """Return `needed`, the requirement of another package, with the file's version limits."""
        name = canonicalize_name(needed.name)
        specifiers = needed.specifier
        for line in self.lines:
            if line.name == name and line.is_for(python):
                specifiers &= line.requirement.specifier
        # pip accepts hashes only for a single version, which must be the only specifier
        pins = [str(pin) for pin in specifiers if pin.operator == "==" and "*" not in pin.version]
        return Requirement(f"{needed.name}{pins[0] if pins else specifiers}")

    def asked(self, python: str) -> list[Requirement]:
        """Return the requirements and constraints for hosts with this version of Python."""
        return [line.requirement for line in self.lines if line.is_for(python)]

    def conflicts(self, stack: Mapping[str, str], python: str) -> list[str]:
        """Return a message for each line that would change a package of the stack.

        Args:
            stack: versions of the stack's packages by name.
        """
        return [
            f"{line.where}: {line.requirement}: the stack has {line.name} {stack[line.name]}, "
            "which cannot be replaced"
            for line in self.lines
            if line.name in stack
            and line.is_for(python)
            and (
                line.requirement.url
                or not line.requirement.specifier.contains(stack[line.name], prereleases=True)
            )
        ]

    def for_pip(self, stack: Mapping[str, str], constraints: bool) -> list[str]:
        """Return the packages (or, if `constraints`, the constraints) that pip must resolve.

        For packages of the stack, only the requested extras remain.
        """
        lines = []
        for line in self.lines:
            asked = line.requirement
            if line.constraint != constraints:
                continue
            if line.name not in stack:
                lines.append(str(asked))
            elif asked.extras:
                marker = f" ; {asked.marker}" if asked.marker else ""
                lines.append(f"{asked.name}[{','.join(sorted(asked.extras))}]{marker}")
        return lines


def read_requirements(path: Path) -> Requirements:
    """Read a requirements file and the files that it includes.

    Raises:
        UsageError: the file does not exist, or contains unsupported lines; the message lists them.
    """
    lines: list[Line] = []
    options: list[str] = []
    problems: list[str] = []
    _read(path, False, (), lines, options, problems)
    if problems:
        raise UsageError("\n  ".join(problems))
    return Requirements(path, tuple(lines), tuple(options))


def _read(
    path: Path, constraint: bool, above: tuple[Path, ...], lines: list[Line], options: list[str],
    problems: list[str],
) -> None:  # fmt: skip
    """Add the content of a requirements file to the lists."""
    if path in above:
        problems.append(f"{path} includes itself")
        return
    try:
        text = read_given(path)
    except GivenFileError as error:
        problems.append(str(error))
        return
    for number, words in _logical_lines(text):
        where = f"{path}:{number}"
        if variable := _VARIABLE.search(words):
            problems.append(
                f"{where}: variables such as {variable[0]} are not supported, because their values "
                "may be secrets; write the value itself, and put credentials of a package index "
                "into ~/.netrc or PIP_INDEX_URL"
            )
            continue
        if words.startswith("-"):
            matched = _OPTION.fullmatch(words)
            name, value = matched.groups() if matched else (words, "")
            if name in (*_FILE, *_CONSTRAINTS):
                limits = constraint or name in _CONSTRAINTS
                _read(path.parent / value, limits, (*above, path), lines, options, problems)
            elif name in _PASSED_ON:
                if name in _FOLDER and (path.parent / value).exists():
                    value = shlex.quote(str((path.parent / value).absolute()))
                options.append(f"{name} {value}".strip())
            elif name not in _ALWAYS:
                problems.append(f"{where}: {name} is not supported")
            continue
        try:
            lines.append(_line(words, where, constraint))
        except ValueError as error:
            problems.append(f"{where}: {error}")


def _line(words: str, where: str, constraint: bool) -> Line:
    """Return the requirement of a line.

    Raises:
        ValueError: the line is wrong; the message gives the reason.
    """
    hashes = _HASH.findall(words)
    asked, *more = _NEXT_OPTION.split(_HASH.sub("", words))
    if more or any(kind != "sha256" for kind, _ in hashes):
        raise ValueError(f"{more[0] if more else hashes[0][0]} is not supported")
    try:
        requirement = Requirement(asked)
    except InvalidRequirement:
        raise ValueError(f"'{asked}' is not of the form NAME>=1.0, or NAME @ URL") from None
    url = urlsplit(requirement.url or "")
    if requirement.url and (
        url.scheme not in ("https", "http", "file") or not url.path.endswith(".whl")
    ):
        raise ValueError(
            f"{requirement.name} is not a wheel; a source distribution must come from an index"
        )
    digests = frozenset(digest.lower() for _, digest in hashes)
    return Line(requirement, where, digests, constraint)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their line numbers; remove comments and join continued lines."""
    parts: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment:
            parts.append(line[:-1])
            continue
        words = _COMMENT.sub("", "".join([*parts, " " * comment + line])).strip()
        if words:
            yield number - len(parts), words
        parts = []
