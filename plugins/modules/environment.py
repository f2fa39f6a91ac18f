#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Verifies wheels on the host and installs them, for the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: environment
short_description: Creates an immutable Python environment from wheels downloaded only once
description:
  - Creates a Python environment from a list of exact versions. The control node downloads the
    wheels once for all hosts with the same Python and C library. Every host verifies each wheel's
    SHA-256 before it installs anything, so a host needs no access to a package index.
  - A finished environment is never changed while the list stays the same. With another list, or
    after an interruption, it is created again.
  - uv, which must be in the list, installs the wheels. The host needs neither pip nor venv.
  - With O(layer), adds wheels to an existing environment, and replaces them when they differ.
  - With O(base), creates a folder of packages that extend an existing environment, and leaves that
    environment unchanged.
  - An environment that a run uses is not changed; the module fails and names the run.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.from_action
options:
  path:
    description: The environment's folder. Its name should change with its contents.
    type: path
    required: true
  requirements:
    description:
      - A file on the control node with one C(name==version) per line. A line may have a marker, and
        C(--hash=sha256:...) for each accepted file.
      - A file of a package without a hash in the list is an error, unless O(allow_unverified).
    type: path
  more_requirements:
    description:
      - A second such file, for packages that only some builds of the first list need. They are
        installed if a wheel of the first list requires one of them.
    type: path
  resolve:
    description: True if O(requirements) is incomplete and pip adds dependencies.
    type: bool
    default: false
  allow_unverified:
    description: True to allow files of packages without a hash in the lists.
    type: bool
    default: false
  index_url:
    description: The package index. The default is the index in pip's configuration on the control
        node.
    type: str
  find_links:
    description: Folders or pages with wheels, in addition to the index.
    type: list
    elements: str
  indexes:
    description: Indexes or folders for single packages, by package name. They are tried first.
    type: dict
  wheelhouse:
    description: A folder on the control node with all wheels, such as an unpacked bundle.
    type: path
  wheels_sha256:
    description: The required SHA-256 of each of O(wheels), in their order. By default, any hash is
        accepted.
    type: list
    elements: str
  wheels:
    description: Wheels on the control node for O(layer).
    type: list
    elements: path
  layer:
    description: The name of an addition to a finished environment.
    type: str
  base:
    description:
      - An environment whose Python and uv are used. O(path) then contains only packages, below
        C(lib/python*/site-packages). The folder gets its final name once all files are on the disk.
    type: path
  python:
    description: The Python that the environment is based on. The default is Ansible's Python.
    type: path
  cache:
    description:
      - The folder on the control node that wheels are downloaded to.
      - The default is C(ftcluster/wheels) in the user's cache folder.
    type: path
attributes:
  check_mode:
    description: Reports if the environment would be installed; downloads nothing.
    support: full
"""

EXAMPLES = r"""
- name: Create the environment
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
  description: Notices about the sources of the wheels.
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
from ansible_collections.ftcluster.cluster.plugins.module_utils.killed import (
    memory_kills,
    why_killed,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import (
    free_bytes,
    libc,
    os_problem,
)
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
    """Return the file that marks an environment or overlay as installed and stores its digest."""
    return path / (f".complete-{layer}" if layer else ".complete")


def digest_found(path: Path, layer: str, check_mode: bool) -> str:
    """Return the digest of an environment or overlay, or "" if its installation is incomplete."""
    try:
        digest, booted = marker(path, layer).read_text(encoding="ascii").partition(" ")[::2]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    # The kernel writes files to the disk with a delay. After a power failure, the marker may exist
    # without the files. Therefore the files are checked once after each boot.
    if booted.strip() != boot_id():
        if not is_whole(path):
            return ""
        if not check_mode:
            finish(path, layer, digest)
    return digest


def is_whole(path: Path) -> bool:
    """Return True if the Python and all files of the packages exist and have the right sizes."""
    python = path / "bin/python"
    if python.is_symlink() and not python.exists():
        return False  # an upgrade of the system has removed the Python
    packages = list(path.glob("lib/python*/site-packages/*.dist-info"))
    try:
        return bool(packages) and all(has_its_files(package) for package in packages)
    except (OSError, ValueError, csv.Error):  # the list of files is truncated
        return False


def has_its_files(package: Path) -> bool:
    """Return True if all files in a package's RECORD exist; may raise OSError or ValueError."""
    record = f"{package.name}/RECORD"  # it lists itself without a size
    with (package / "RECORD").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    sizes = {name: size for name, _hash, size in rows}
    for name, size in sizes.items():
        if (package.parent / name).stat().st_size != int(size or -1) and name != record:
            return False
    return record in sizes


def check(folder: Path, sha256: Mapping[str, str]) -> None:
    """Verify the wheels that the control node sent.

    Raises:
        ValueError: a wheel has another hash, is missing or is unexpected; the message names it.
    """
    arrived = {path.name: path for path in folder.iterdir()}
    if arrived.keys() != sha256.keys():
        different = ", ".join(sorted(arrived.keys() ^ sha256.keys()))
        raise ValueError(
            f"the wheels that arrived are not those that were sent ({different}); run setup again"
        )
    for name, path in arrived.items():
        digest = file_sha256(path)
        if digest.hexdigest() != sha256[name]:
            raise ValueError(
                f"the SHA-256 of {name} is {digest.hexdigest()} here, but {sha256[name]} was "
                "sent; the file was changed on the way or on the control node: run setup again"
            )


def unpack_uv(staging: Path) -> Path | None:
    """Extract the program uv from its wheel; return None if there is no such wheel."""
    for wheel in staging.glob("uv-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            name = f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/uv"
            program = staging / "uv"
            program.write_bytes(archive.read(name))
        program.chmod(0o755)
        return program
    return None


def finish(path: Path, layer: str, digest: str) -> None:
    """Write the marker of a finished installation atomically, as the last step."""
    write_text(marker(path, layer), f"{digest} {boot_id()}\n", 0o644)


def protect(path: Path) -> None:
    """Allow only the training account to lock a stack's folder.

    Any user who can list a folder can lock it, so the permission is removed. Other users can still
    execute the programs in the folder. The group comes from the folder `runs` next to the stacks.
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


def verify(module: Any, folder: str, sha256: dict[str, str]) -> None:
    """Verify the wheels in a folder; if one is wrong, remove the folder and end the module."""
    try:
        check(Path(folder), sha256)
    except (ValueError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        module.fail_json(msg=str(error))


def install(module: Any, path: Path, folder: str, digest: str, sha256: dict[str, str]) -> bool:
    """Install the verified wheels in a folder, under a lock.

    Return True if this call installed the wheels.
    """
    layer, staging = module.params["layer"] or "", Path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            remove_stale(path)
            if digest_found(path, layer, check_mode=True) == digest:
                return False  # another control node has installed the environment meanwhile
            with without_runs(path):
                if module.params["base"]:
                    fill_beside(module, path, staging, digest)
                else:
                    fill(module, path, staging, layer, sha256)
                    finish(path, layer, digest)
    except (ValueError, LookupError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_problem(error, path))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def remove_stale(path: Path) -> None:
    """Remove leftovers of interrupted installations of this environment."""
    left = list(path.parent.glob(f"{path.name}.staging-*"))
    for staging in unchanged(left, path.parent, STALE_SECONDS):
        shutil.rmtree(staging, ignore_errors=True)


def options_of(staging: Path) -> list[str | Path]:
    """Return uv's options: unpack into a cache on the same file system, then link the files."""
    return ["--no-config", "--offline", "--quiet", "--cache-dir", staging / "cache"]


def install_words(staging: Path) -> list[str | Path]:
    """Return uv's arguments: install only the wheels of the staging folder."""
    names = [wheel.name.split("-")[:2] for wheel in sorted(staging.glob("*.whl"))]
    pins = [f"{name}=={version}" for name, version in names]
    return ["--no-index", "--find-links", staging, "--no-deps", *pins]


def fill_beside(module: Any, path: Path, staging: Path, digest: str) -> None:
    """Install the wheels of the staging folder into a new environment, then rename it."""
    base, new = Path(module.params["base"]), staging / "new"
    where = ["--python", base / "bin/python", "--prefix", new]
    options = options_of(staging)
    run(module, [base / "bin/uv", "pip", "install", *options, *where, *install_words(staging)])
    (new / ".lock").unlink(missing_ok=True)  # uv creates this lock world-writable
    finish(new, "", digest)
    run(module, ["sync", "--file-system", new])
    shutil.rmtree(path, ignore_errors=True)  # the environment is incomplete
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
    (path / ".lock").unlink(missing_ok=True)  # uv creates this lock world-writable
    (path / f"wheels{'-' + layer if layer else ''}.json").write_text(
        json.dumps(sha256, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def run(module: Any, command: Iterable[object]) -> None:
    """Run a program; if it fails, end the module with the last lines of its output."""
    os.umask(0o022)
    environment = {"UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink"}
    argv = [str(word) for word in command]
    before = memory_kills()
    code, out, err = module.run_command(argv, environ_update=environment)
    if code != 0:
        output = "\n".join((err or out).strip().splitlines()[-8:])
        killed = why_killed(code, memory_kills() > before)
        problem = f"{killed}\n{output}".rstrip() if killed else f"failed: {output}"
        module.fail_json(msg=f"{' '.join(argv[:3])} {problem}")


def main() -> None:
    """Ansible's entry point; the action plugin calls it once to query and once to install."""
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
        if "verify" in sent["step"]:
            verify(module, sent["staging"], sent["sha256"])
        if "install" not in sent["step"]:
            module.exit_json(changed=False)
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
        protect(path)  # the account may have been created after the stack
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
