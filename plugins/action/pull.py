# Apache-2.0 (see LICENSE)
"""Copies a folder of a host to the control node over Ansible's connection."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute

PIECE_BYTES = 8 << 20  # maximum bytes of a file in one response
MOST_FILES = 10_000  # a model has dozens of files; predictions have one per data set
MOST_NAME = 1000  # maximum characters of a file's path in the folder
SPARE_BYTES = 256 << 20  # bytes that must stay free on the control node's disk


# size and hash before a path, as printed by the command below
LISTED = re.compile(r"(\d{1,15}) ([0-9a-f]{64}) \./(.+)", re.ASCII)
# characters that are never in a file name of a model: control characters and surrogates (bytes that
# are not UTF-8)
REFUSED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\]")


def is_file_name(name: str) -> bool:
    """Return True if a relative path stays below any folder that it is appended to.

    >>> [is_file_name(name) for name in ("a/b", "../a", "/a", "a//b", "a\\nb")]
    [True, False, False, False, False]
    """
    return (
        len(name) <= MOST_NAME
        and not REFUSED.search(name)
        and all(
            part not in ("", ".", "..") and len(part.encode()) < 256 for part in name.split("/")
        )
    )


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/pull.py."""

    _VALID_ARGS = frozenset(("path", "destination", "newer"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Copy all files to a new folder next to the destination, then rename the new folder."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        path = self._task.args["path"]
        destination = Path(self._task.args["destination"]).absolute()
        if destination.exists() and any(destination.iterdir()):
            raise AnsibleActionFail(f"{destination} is not empty; name another folder")
        files = self._listed(path, self._task.args.get("newer") or "")
        self._check_size(path, files, destination)
        partial = destination.with_name(f".{destination.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        make_private(partial.parent)
        try:
            partial.mkdir(0o700)
        except FileExistsError:
            raise AnsibleActionFail(f"{partial} is in the way; remove it") from None
        try:
            for name, (size, digest) in files.items():
                self._pull(f"{path}/{name}", partial / name, size, digest)
            folders = {partial, *((partial / name).parent for name in files)}
            for folder in folders:
                sync(folder)
            if destination.exists():
                destination.rmdir()
            partial.rename(destination)
            sync(destination.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        size = sum(size for size, _digest in files.values())
        result.update(changed=True, files=len(files), size=size)
        return result

    def _listed(self, path: str, newer: str) -> dict[str, tuple[int, str]]:
        """Return the size and SHA-256 of each file by its path in the folder."""
        only = f"-newer {shlex.quote(newer)} ! -path '*/__pycache__/*' " if newer else ""
        command = (
            f"cd {shlex.quote(path)} && {TELL} && tell files && find . -type f {only}-exec sh -c "
            '\'for f; do echo "$(wc -c < "$f") $(sha256sum < "$f" | cut -c1-64) $f"; done\' sh {} +'
        )
        text = self._answer(command, "files")
        files = {}
        for line in text.split("\n"):
            line = line.rstrip("\r")
            if not line:
                continue
            listed = LISTED.fullmatch(line)
            if not listed or not is_file_name(listed[3]):
                raise AnsibleActionFail(
                    f"the host lists a name that is not a file in {path}: {line[:200]!a}"
                )
            if listed[3] in files:
                raise AnsibleActionFail(f"the host lists a file in {path} twice: {line[65:265]!a}")
            files[listed[3]] = (int(listed[1]), listed[2])
            if len(files) > MOST_FILES:
                raise AnsibleActionFail(
                    f"{path} contains more than {MOST_FILES} files; copy the folder yourself"
                )
        if not files:
            raise AnsibleActionFail(f"{path} has no files{f' newer than {newer}' if newer else ''}")
        folders = {str(above) for name in files for above in PurePosixPath(name).parents}
        both = sorted(folders & files.keys())
        if both:
            raise AnsibleActionFail(f"the host lists a file in {path} as a folder: {both[0]!a}")
        return files

    def _check_size(
        self, path: str, files: Mapping[str, tuple[int, str]], destination: Path
    ) -> None:
        """Raise an error if the disk has too little space for the files."""
        size = sum(size for size, _digest in files.values())
        above = next(folder for folder in destination.parents if folder.is_dir())
        free = shutil.disk_usage(above).free
        if size > free - SPARE_BYTES:
            raise AnsibleActionFail(
                f"{path} contains {size} bytes, but only {free} bytes are free in {above} on this "
                f"machine, and {SPARE_BYTES} must stay free; name a folder on another disk"
            )

    def _pull(self, path: str, destination: Path, size: int, digest: str) -> None:
        make_private(destination.parent)
        seen = hashlib.sha256()
        # only this user may read the copy of a model or rows; never write through an existing link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(destination, flags, 0o600)
        except OSError as error:
            raise AnsibleActionFail(f"{destination}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as file:
            while file.tell() < size:
                wanted = min(PIECE_BYTES, size - file.tell())
                piece = self._piece(path, file.tell(), wanted)
                if not piece:
                    break
                if len(piece) > wanted:
                    raise AnsibleActionFail(f"the host sent more bytes of {path} than it listed")
                seen.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if seen.hexdigest() != digest:
            raise AnsibleActionFail(
                f"{path} changed while it was copied, or the copy is damaged; copy it again"
            )

    def _piece(self, path: str, offset: int, wanted: int) -> bytes:
        command = (
            f"{TELL} && tell piece && tail -c +{offset + 1} {shlex.quote(path)} 2>/dev/null "
            f"| head -c {wanted} | base64 -w 0"
        )
        try:
            return base64.b64decode(self._answer(command, "piece").strip(), validate=True)
        except ValueError:  # binascii.Error is a ValueError
            raise AnsibleActionFail(f"{path} cannot be read") from None

    def _answer(self, command: str, word: str) -> str:
        answer = execute(self, command)
        said, text = str(answer["stdout"]).partition(MARK)[2].partition("\n")[::2]
        if said.strip() != word:
            reason = answer.get("stderr") or answer["stdout"]
            raise AnsibleActionFail(reason.strip().splitlines()[-1] if reason.strip() else command)
        return text


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, so that only this user can open them."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(0o700)


def sync(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
