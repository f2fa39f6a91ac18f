"""This machine's Python, for hosts whose own Python has no wheels on this machine."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.programs import CACHE

OWN = {"bookworm": (3, 11), "trixie": (3, 13), "jammy": (3, 10), "noble": (3, 12)}
VERSION = sysconfig.get_python_version()
PLACE = f"/opt/python{VERSION}"
PROGRAM = f"{PLACE}/bin/python{VERSION}"
# Compiled files stay in the folder, because nobody can write them on the hosts.
LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo")


def brought_python(suite: str) -> Path | None:
    """Return a folder that hosts see at PLACE; None if the hosts have this version."""
    if OWN[suite] == sys.version_info[:2]:
        return None
    folder = CACHE / f"python-{sys.version.partition(' ')[0]}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            _copy(scratch)
            scratch.chmod(0o755)
            scratch.rename(folder)
        except OSError:
            if not folder.exists():  # another process may have made the folder meanwhile
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _copy(folder: Path) -> None:
    """Copy the program, the modules that it imports, and its shared library if it has one."""
    base = Path(sys.base_prefix)
    (folder / "bin").mkdir()
    shutil.copy(base / "bin" / f"python{VERSION}", folder / "bin")
    library = Path(sysconfig.get_path("stdlib"))
    ignored = shutil.ignore_patterns(*LEFT_OUT, "config-*")
    shutil.copytree(library, folder / "lib" / library.name, ignore=ignored)
    shared = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))
    if shared.is_file():
        shutil.copy(shared, folder / "lib")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 0, 0)
