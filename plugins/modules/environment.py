#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The host's part of the action plugin of the same name: verifies wheels and installs them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: environment
short_description: An immutable Python environment from wheels that the control node downloads once
description:
  - Makes a Python environment from a list of exact versions. The control node downloads the wheels,
    once for all hosts with the same Python and C library; every host verifies each wheel's SHA-256
    before anything is installed, so a host needs no way to a package index.
  - A finished environment is never touched again while the list is the same. With another list, or
    broken off, it is made anew.
  - uv, which must be in the list, installs. Neither pip nor the venv module is needed on the host.
  - With O(layer), adds wheels to an environment that is there, and replaces them when they differ.
  - With O(base), makes a folder of packages for an environment that stays as it is.
  - An environment that a run uses is not changed; the module fails with the run's name.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.from_action
options:
  path:
    description: The environment's folder. Let its name change with its contents.
    type: path
    required: true
  requirements:
    description:
      - A file on the control node with one C(name==version) a line. A line may have a marker and
        C(--hash=sha256:...), which are then the only files that are accepted.
      - A file whose package has no hash in the list is refused, unless O(allow_unverified).
    type: path
  more_requirements:
    description:
      - A second such file, for packages that only some builds of the first ones need. They are
        installed if a wheel of the first asks for one of them.
    type: path
  resolve:
    description: Whether O(requirements) is not complete and pip adds what its packages need.
    type: bool
    default: false
  allow_unverified:
    description: Whether files may be installed whose package has no hash in the lists.
    type: bool
    default: false
  index_url:
    description: The package index; left out, pip's own configuration on the control node counts.
    type: str
  find_links:
    description: Folders or pages with wheels, beside the index.
    type: list
    elements: str
  indexes:
    description: Indexes or folders of single packages, by the package's name. They are tried first.
    type: dict
  wheelhouse:
    description: A folder on the control node where all wheels are already, as a bundle has them.
    type: path
  wheels_sha256:
    description: The SHA-256 that each of O(wheels) must have, in their order; left out, any.
    type: list
    elements: str
  wheels:
    description: Wheels on the control node that make up O(layer).
    type: list
    elements: path
  layer:
    description: The name of what is added to a finished environment.
    type: str
  base:
    description:
      - An environment whose Python and uv are used. O(path) then has only the packages, below
        C(lib/python*/site-packages), and gets its name when it is on the disk.
    type: path
  python:
    description: The Python that the environment is made from. Left out, the one Ansible uses.
    type: path
  cache:
    description:
      - The folder on the control node that wheels are downloaded to.
      - Left out, C(ftcluster/wheels) in the user's cache folder.
    type: path
attributes:
  check_mode:
    description: Says whether something would be installed; downloads nothing.
    support: full
"""

EXAMPLES = r"""
- name: Make the environment
  ftcluster.cluster.environment:
    path: /opt/tool/1.2
    requirements: "{{ playbook_dir }}/tool-1.2.txt"
    python: /usr/bin/python3
"""

RETURN = r"""
sha256:
  description: The hash of every wheel that was installed, by file name.
  returned: when something was installed
  type: dict
notices:
  description: What is worth knowing of where the wheels came from.
  returned: when something was installed
  type: list
  elements: str
"""

import csv
import json
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import remove_acl
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import alone_in
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import free_bytes, libc
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import without_runs
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    opened,
    refuse_unguarded,
    write_text,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.stale import unchanged
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import file_sha256

STALE_SECONDS = 3600


def marker(path: Path, layer: str) -> Path:
    """The file that says with which digest a part of an environment was finished."""
    return path / (f".complete-{layer}" if layer else ".complete")


def digest_found(path: Path, layer: str, check_mode: bool) -> str:
    """The digest a part was finished with, or an empty string where it is not whole."""
    try:
        digest, booted = marker(path, layer).read_text(encoding="ascii").partition(" ")[::2]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    # Files reach the disk some time after they were written. If the host lost its power meanwhile,
    # the marker may be there and they not, so they are read once in each boot.
    if booted.strip() != boot_id():
        if not is_whole(path):
            return ""
        if not check_mode:
            finish(path, layer, digest)
    return digest


def is_whole(path: Path) -> bool:
    """Whether its Python is there, and every file that its packages list, with its size."""
    python = path / "bin/python"
    if python.is_symlink() and not python.exists():
        return False  # an upgrade of the system has removed the one that it was made from
    packages = list(path.glob("lib/python*/site-packages/*.dist-info"))
    try:
        return bool(packages) and all(has_its_files(package) for package in packages)
    except (OSError, ValueError, csv.Error):  # a list that was torn
        return False


def has_its_files(package: Path) -> bool:
    """Whether one package has what its RECORD lists; an OSError or ValueError means no as well."""
    record = f"{package.name}/RECORD"  # the one line without a size
    with (package / "RECORD").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    sizes = {name: size for name, _hash, size in rows}
    for name, size in sizes.items():
        if (package.parent / name).stat().st_size != int(size or -1) and name != record:
            return False
    return record in sizes


def check(folder: Path, sha256: Mapping[str, str]) -> None:
    """Verify the wheels that were sent.

    Raises:
        ValueError: a hash is another one, or a wheel is missing or not expected; names it.
    """
    arrived = {path.name: path for path in folder.iterdir()}
    if arrived.keys() != sha256.keys():
        different = ", ".join(sorted(arrived.keys() ^ sha256.keys()))
        raise ValueError(f"{different}: sent or expected, but not both; run setup again")
    for name, path in arrived.items():
        digest = file_sha256(path)
        if digest.hexdigest() != sha256[name]:
            raise ValueError(
                f"{name} arrived with the sha256 {digest.hexdigest()}, not {sha256[name]}; "
                "it was changed on the way or on the control node: run setup again"
            )


def unpack_uv(staging: Path) -> Path | None:
    """The program uv out of its wheel, or None where there is no such wheel."""
    for wheel in staging.glob("uv-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            name = f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/uv"
            program = staging / "uv"
            program.write_bytes(archive.read(name))
        program.chmod(0o755)
        return program
    return None


def finish(path: Path, layer: str, digest: str) -> None:
    """Write the marker, last of all and whole."""
    write_text(marker(path, layer), f"{digest} {boot_id()}\n", 0o644)


def protect(path: Path) -> None:
    """Let only the account that trains lock a stack, which whoever can list its folder could.

    Others execute its programs all the same. `runs` beside the folder of stacks has the account's
    group.
    """
    runs = path.parent.parent / "runs"
    if path.parent.name != "stacks":
        return
    with opened(path) as descriptor:
        remove_acl(descriptor)
    if os.geteuid() == 0 and runs.is_dir():
        os.chown(path, -1, runs.stat().st_gid)
        path.chmod(0o751)
    else:
        path.chmod(0o711)


def install(module: Any, path: Path, folder: str, digest: str, sha256: dict[str, str]) -> bool:
    """Verify the wheels that were sent into a folder, and install them, alone.

    Returns whether they had to be installed.
    """
    layer, staging = module.params["layer"] or "", Path(folder)
    try:
        check(staging, sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            remove_stale(path)
            if digest_found(path, layer, check_mode=True) == digest:
                return False  # by another control node meanwhile
            with without_runs(path):
                if module.params["base"]:
                    fill_beside(module, path, staging, digest)
                else:
                    fill(module, path, staging, layer, sha256)
                    finish(path, layer, digest)
    except (ValueError, LookupError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror or error}")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def remove_stale(path: Path) -> None:
    """Remove what broken-off installations of this environment have left."""
    left = list(path.parent.glob(f"{path.name}.staging-*"))
    for staging in unchanged(left, path.parent, STALE_SECONDS):
        shutil.rmtree(staging, ignore_errors=True)


def options_of(staging: Path) -> list[str | Path]:
    """uv's: it unpacks once, into a cache on the same file system, and links from there."""
    return ["--no-config", "--offline", "--quiet", "--cache-dir", staging / "cache"]


def install_words(staging: Path) -> list[str | Path]:
    """What uv installs: the wheels of the staging folder and nothing else."""
    names = [wheel.name.split("-")[:2] for wheel in sorted(staging.glob("*.whl"))]
    pins = [f"{name}=={version}" for name, version in names]
    return ["--no-index", "--find-links", staging, "--no-deps", *pins]


def fill_beside(module: Any, path: Path, staging: Path, digest: str) -> None:
    """Install the wheels of the staging folder for another environment, under another name."""
    base, new = Path(module.params["base"]), staging / "new"
    where = ["--python", base / "bin/python", "--prefix", new]
    options = options_of(staging)
    run(module, [base / "bin/uv", "pip", "install", *options, *where, *install_words(staging)])
    (new / ".lock").unlink(missing_ok=True)  # uv's, which everybody may write
    finish(new, "", digest)
    run(module, ["sync", "--file-system", new])
    shutil.rmtree(path, ignore_errors=True)  # one that is not whole
    new.rename(path)


def fill(module: Any, path: Path, staging: Path, layer: str, sha256: Mapping[str, str]) -> None:
    """Install the wheels of the staging folder."""
    uv = unpack_uv(staging) or path / "bin" / "uv"
    options = options_of(staging)
    if not layer:
        shutil.rmtree(path, ignore_errors=True)
        python = module.params["python"] or sys.executable
        run(module, [uv, "venv", *options, "--no-project", "--python", python, path])
        protect(path)
    python = ["--python", path / "bin/python"]
    again = ["--reinstall"] if layer else []
    run(module, [uv, "pip", "install", *options, *python, *again, *install_words(staging)])
    run(module, [uv, "pip", "check", *options, *python])
    (path / ".lock").unlink(missing_ok=True)  # uv's, which everybody may write
    (path / f"wheels{'-' + layer if layer else ''}.json").write_text(
        json.dumps(sha256, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def run(module: Any, command: Iterable[object]) -> None:
    """Run a program; its failure ends the module with its last words."""
    os.umask(0o022)
    environment = {"UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink"}
    argv = [str(word) for word in command]
    code, out, err = module.run_command(argv, environ_update=environment)
    if code != 0:
        words = "\n".join((err or out).strip().splitlines()[-8:])
        module.fail_json(msg=f"{' '.join(argv[:3])} failed: {words}")


def main() -> None:
    """Ansible's entry point; the action plugin calls it once to ask and once to install."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "requirements": {"type": "path"},
            "more_requirements": {"type": "path"},
            "resolve": {"type": "bool", "default": False},
            "allow_unverified": {"type": "bool", "default": False},
            "index_url": {"type": "str"},
            "find_links": {"type": "list", "elements": "str"},
            "indexes": {"type": "dict"},
            "wheelhouse": {"type": "path"},
            "wheels": {"type": "list", "elements": "path"},
            "wheels_sha256": {"type": "list", "elements": "str"},
            "layer": {"type": "str"},
            "base": {"type": "path"},
            "python": {"type": "path"},
            "cache": {"type": "path"},
            "from_action": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    try:
        refuse_unguarded(path)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    if sent := module.params["from_action"]:
        changed = install(module, path, sent["staging"], sent["digest"], sent["sha256"])
        module.exit_json(changed=changed, sha256=sent["sha256"])
    interpreter = module.params["python"] or sys.executable
    program = "import platform; print(platform.python_version())"
    code, out, err = module.run_command([interpreter, "-I", "-B", "-c", program])
    if code != 0:
        module.fail_json(msg=f"{interpreter} does not run: {(err or out).strip()}")
    version = ".".join(out.strip().split(".")[:2])
    digest = digest_found(path, module.params["layer"] or "", module.check_mode)
    if digest and not module.check_mode and path.stat().st_uid == os.geteuid():
        protect(path)  # the account may be younger than the stack
    module.exit_json(
        changed=False,
        digest=digest,
        python_version=version,
        glibc=libc().partition("glibc ")[2],
        machine=platform.machine(),
        free_bytes=free_bytes(path),
    )


if __name__ == "__main__":
    main()
