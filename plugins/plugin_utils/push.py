# Apache-2.0 (see LICENSE)
"""Streams files of the control node into a host as the user that the task runs as.

Ansible's own transfer writes as the login user first, which needs ACLs or open permissions where
the task becomes another ordinary user. Standard input needs neither, nor space for a second copy.
"""

from __future__ import annotations

import io
import shlex
import tarfile

from ansible.errors import AnsibleActionFail

CHUNK_BYTES = 32 * 1024 * 1024  # held in memory once a host


def push_files(action, files, folder):
    """Write (path, name) pairs into a new folder of the host that only the task's user can read.

    Small files go together, as a tar that is unpacked as it comes; large ones in pieces.

    Raises:
        AnsibleActionFail: the host cannot write them.
    """
    there = shlex.quote(folder)
    _run(action, f"rm -rf {there} && umask 022 && mkdir -p -m 0700 {there}", b"", folder)
    unpack = f"tar -x -f - -C {there}"
    batch, size = [], 0
    for path, name in files:
        length = path.stat().st_size
        if length >= CHUNK_BYTES:
            _push_large(action, path, f"{folder}/{name}")
            continue
        if size + length > CHUNK_BYTES:
            _run(action, unpack, tar_of(batch), folder)
            batch, size = [], 0
        batch.append((path, name))
        size += length
    if batch:
        _run(action, unpack, tar_of(batch), folder)


def tar_of(files):
    """The bytes of an uncompressed tar of (path, name in the tar) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, name in files:
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = _mode(path)
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return buffer.getvalue()


def _mode(path):
    """What others may do with a file at home, but write it."""
    return path.stat().st_mode & 0o755 | 0o600


def _push_large(action, path, target):
    place = shlex.quote(target)
    start = f'mkdir -p "$(dirname {place})" && : > {place} && chmod {_mode(path):o} {place}'
    _run(action, start, b"", target)
    with path.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            _run(action, f"cat >> {place}", part, target)


def execute(action, command, data=b""):
    """Run a shell command on the host; what it says on stderr is in `stderr`.

    With input, Ansible takes no terminal, which would make one of stdout and stderr.
    """
    return action._low_level_execute_command(command, sudoable=True, in_data=data or b"\n")


def _run(action, command, data, place):
    done = execute(action, command, data)
    if done["rc"] != 0:
        words = (done.get("stderr") or done.get("stdout") or "").strip()
        raise AnsibleActionFail(f"{place} cannot be written: {words}")
