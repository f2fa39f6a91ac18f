"""A model in a Python package, as a recipe names it. Standard library only."""

import re
from dataclasses import dataclass

PACKAGE = "pypi:"  # begins a model in a Python package
FORM = "pypi:NAME==VERSION --hash=sha256:HEX"
# PEP 508 and PEP 440: neither has a character that a path, an option or a second line needs
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?"
_HASH = r"--hash=sha256:[0-9a-f]{64}"
_WHOLE = re.compile(rf"({_NAME})==({_VERSION})((?: +{_HASH})+)")


@dataclass(frozen=True)
class ModelPackage:
    """One package that has a model.

    Attributes:
        hashes: options of pip, one for each file that is allowed.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The line of a requirements file."""
        return " ".join((f"{self.name}=={self.version}", *self.hashes))


def read_model_package(value: str) -> ModelPackage:
    """The package of a recipe's `model: pypi:...`.

    Raises:
        ValueError: it has another form, which pip could read as a path, an option or a source.

    >>> read_model_package("pypi:some-model==0.1.0 --hash=sha256:" + "0" * 64).version
    '0.1.0'
    """
    match = _WHOLE.fullmatch(value.removeprefix(PACKAGE).strip(" "))
    if not match:
        raise ValueError(f"{value[:200]!a} is not {FORM}")
    return ModelPackage(match[1], match[2], tuple(match[3].split()))
