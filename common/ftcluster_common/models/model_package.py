"""Parses a recipe's reference to a model in a Python package, and names folders in packages.

Standard library only.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pypi:"  # prefix of a reference to a Python package
FORM = "pypi:NAME==VERSION --hash=sha256:HEX"
# The patterns follow PEP 508 and PEP 440, so no name or version can begin a path, an option or a
# new line.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?"
_HASH = r"--hash=sha256:[0-9a-f]{64}"
PLAIN_FOLDERS = ("model", "models", "weights", "files", "data")  # names that name no model
_WHOLE = re.compile(rf"({_NAME})==({_VERSION})((?: +{_HASH})+)")


@dataclass(frozen=True)
class ModelPackage:
    """A Python package that contains a model.

    Attributes:
        hashes: pip's --hash options, one for each file that pip may install.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The line for the package in a requirements file."""
        return " ".join((f"{self.name}=={self.version}", *self.hashes))


def read_model_package(value: str) -> ModelPackage:
    """Return the package that a recipe names as `model: pypi:...`.

    Raises:
        ValueError: the value has a different format, which pip might interpret as a path, an option
            or a source.

    >>> read_model_package("pypi:some-model==0.1.0 --hash=sha256:" + "0" * 64).version
    '0.1.0'
    """
    match = _WHOLE.fullmatch(value.removeprefix(PACKAGE).strip(" "))
    if not match:
        raise ValueError(f"{value[:200]!a} is not {FORM}")
    return ModelPackage(match[1], match[2], tuple(match[3].split()))


def name_of_folder(folder: Path) -> str:
    """Return the name of a model's folder, which includes the name of an installed package.

    Packages keep their model in a folder that is often called `model`. A folder for packages, such
    as site-packages, contains folders `*.dist-info` (PyPA, Recording installed projects).

    >>> name_of_folder(Path("/srv/models/bert-tiny"))
    'bert-tiny'
    """
    for place in [*folder.parents][1:]:
        if any(place.glob("*.dist-info")):
            package = folder.parts[len(place.parts)]
            return package if folder.name in PLAIN_FOLDERS else f"{package}-{folder.name}"
    return folder.name
