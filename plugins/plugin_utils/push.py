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


def tar_chunks(files):
    """The bytes of an uncompressed tar of (path, name in the tar) pairs, in chunks."""
    buffer = io.BytesIO()

    def flush(least):
        while buffer.tell() >= least and buffer.tell():
            data = buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
            buffer.write(data[CHUNK_BYTES:])
            yield data[:CHUNK_BYTES]

    for path, name in files:
        entry = tarfile.TarInfo(name)
        entry.size = path.stat().st_size
        buffer.write(entry.tobuf())
        with path.open("rb") as file:
            while part := file.read(CHUNK_BYTES):
                buffer.write(part)
                yield from flush(CHUNK_BYTES)
        buffer.write(b"\0" * (-entry.size % tarfile.BLOCKSIZE))
    buffer.write(b"\0" * 2 * tarfile.BLOCKSIZE)
    yield from flush(0)


def push_tar(action, files, remote_path):
    """Write a tar of (path, name) pairs to a file of the host, private to the task's user.

    Raises:
        AnsibleActionFail: the host cannot write it.
    """
    target = shlex.quote(remote_path)
    command = f'umask 022; mkdir -p -m 0700 "$(dirname {target})" && : > {target}'
    _run(action, command, b"", remote_path)
    for chunk in tar_chunks(files):
        _run(action, f"cat >> {target}", chunk, remote_path)


def _run(action, command, data, remote_path):
    done = action._low_level_execute_command(command, sudoable=True, in_data=data or None)
    if done["rc"] != 0:
        words = (done.get("stderr") or done.get("stdout") or "").strip()
        raise AnsibleActionFail(f"{remote_path} cannot be written: {words}")
