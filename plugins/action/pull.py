# Apache-2.0 (see LICENSE)
"""Copies a folder of a host to the control node over Ansible's connection."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shlex
import shutil
from pathlib import Path, PurePosixPath

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import execute

PIECE_BYTES = 8 << 20  # of a file, in one answer


class ActionModule(ActionBase):
    """Pulls a folder; see plugins/modules/pull.py."""

    _VALID_ARGS = frozenset(("path", "destination"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        """Copy every file to a folder beside the destination, then rename it."""
        result = super().run(tmp, task_vars)
        path = self._task.args["path"]
        destination = Path(self._task.args["destination"]).absolute()
        if destination.exists() and any(destination.iterdir()):
            raise AnsibleActionFail(f"{destination} is not empty; name another folder")
        files = self._listed(path)
        partial = destination.with_name(f".{destination.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
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
        size = sum(size for size, _ in files.values())
        result.update(changed=True, files=len(files), size=size)
        return result

    def _listed(self, path):
        """Size and SHA-256 of each file, by its path in the folder."""
        command = (
            f"cd {shlex.quote(path)} && {TELL} && tell files && find . -type f -exec sh -c "
            '\'for f; do echo "$(wc -c < "$f") $(sha256sum < "$f" | cut -c1-64) $f"; done\' sh {} +'
        )
        text = self._answer(command, "files")
        files = {}
        for line in text.splitlines():
            found = re.fullmatch(r"(\d+) ([0-9a-f]{64}) \./(.+)", line.rstrip("\r"))
            parts = PurePosixPath(found[3]).parts if found else ()
            if not found or ".." in parts or found[3].startswith("/"):
                raise AnsibleActionFail(f"the host lists what is no file of {path}: {line[:200]!a}")
            files[found[3]] = (int(found[1]), found[2])
        if not files:
            raise AnsibleActionFail(f"{path} has no files")
        return files

    def _pull(self, path, destination, size, digest):
        destination.parent.mkdir(parents=True, exist_ok=True)
        seen = hashlib.sha256()
        with destination.open("wb") as file:
            while file.tell() < size:
                piece = self._piece(path, file.tell())
                if not piece:
                    break
                seen.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if seen.hexdigest() != digest:
            raise AnsibleActionFail(f"{path} changed while it was copied, or the copy is damaged")

    def _piece(self, path, offset):
        command = (
            f"{TELL} && tell piece && tail -c +{offset + 1} {shlex.quote(path)} 2>/dev/null "
            f"| head -c {PIECE_BYTES} | base64 -w 0"
        )
        try:
            return base64.b64decode(self._answer(command, "piece").strip(), validate=True)
        except binascii.Error:
            raise AnsibleActionFail(f"{path} cannot be read") from None

    def _answer(self, command, word):
        answer = execute(self, command)
        said, _, text = answer["stdout"].partition(MARK)[2].partition("\n")
        if said.strip() != word:
            reason = answer.get("stderr") or answer["stdout"]
            raise AnsibleActionFail(reason.strip().splitlines()[-1] if reason.strip() else command)
        return text


def sync(folder):
    """Have a folder's entries on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
