"""Where Ansible's programs are, and the locale that they need."""

import locale
import shutil
import sys
from pathlib import Path

from ftcluster.errors import FtclusterError

UTF8 = {"LC_ALL": "C.UTF-8"}  # which glibc has where no locale is installed


def program(name: str) -> str:
    """The path of an Ansible program: beside this Python, or on PATH.

    Raises:
        FtclusterError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if not path:
        raise FtclusterError(f"{name} is not installed beside {sys.executable} nor on PATH")
    return path


def utf8_locale() -> dict[str, str]:
    """Variables for Ansible, which ends where the locale is not UTF-8 or not installed.

    Scripts set LC_ALL=C, and ssh brings a locale that this machine may not have.
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
