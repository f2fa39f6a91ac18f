"""The paths of Ansible's programs, and the locale that they need."""

import locale
import shutil
import sys
from pathlib import Path

from ftcluster.errors import FtclusterError

UTF8 = {"LC_ALL": "C.UTF-8"}  # glibc always has this locale


def program(name: str) -> str:
    """Return the path of an Ansible program: next to this Python, or on PATH.

    Raises:
        FtclusterError: the program is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if not path:
        raise FtclusterError(f"{name} is installed neither next to {sys.executable} nor on PATH")
    return path


def utf8_locale() -> dict[str, str]:
    """Return variables for Ansible, which exits if the locale is not UTF-8 or not installed.

    Scripts set LC_ALL=C, and ssh can pass on a locale that this machine does not have.
    """
    now = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        encoding = locale.getlocale()[1] or ""
    except (locale.Error, ValueError):
        return UTF8
    finally:
        locale.setlocale(locale.LC_ALL, now)
    return {} if encoding.lower() in ("utf-8", "utf8") else UTF8
