#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Manages the SSH mesh on a host: the head that the host accepts, and the host's keys.

The module authorized_key of ansible.posix is not sufficient: it identifies lines only by their key.
After a change of the head's key, the line of the old key would remain.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_member
short_description: Lets the head of a cluster log in, and returns the host's public keys
description:
  - Keeps one line for the head in the C(authorized_keys) of the task's user, with C(restrict) and
    C(from=). Removes the lines of former heads, and does not change other lines.
  - Returns the public host keys, read on the host over Ansible's connection.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.changes
options:
  public_key:
    description: The head's public key. Empty in check mode before it exists.
    type: str
    default: ""
  address:
    description: The only address from which the key may be used.
    type: str
    default: ""
  folder:
    description:
      - The folder of the mesh on the head. It identifies the cluster in the line, so that a host
        may have one line for each of its clusters.
    type: str
    required: true
  other_heads:
    description: Addresses of other heads of this cluster, or C(*) for all. Their lines stay.
    type: list
    elements: str
    default: []
  state:
    description: V(present) lets the head log in.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Let the head log in
  ftcluster.cluster.mesh_member:
    public_key: "{{ head.public_key }}"
    address: 10.0.0.11
    folder: /opt/ftcluster/mesh
  become: true
  become_user: ftcluster
"""

RETURN = r"""
host_keys:
  description: The host's public keys, C(TYPE BASE64).
  returned: success
  type: list
  elements: str
"""

import os
import pwd
import re
from collections.abc import Collection
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    RefusedPath,
    read_text,
    write_text,
)

MARK = "ftcluster-mesh@"  # beginning of the key's comment
KEYS = "/etc/ssh/ssh_host_*_key.pub"
# form of mesh_head's results; any other text could be a line without restrict and from=
PUBLIC_KEY = re.compile(rf"ssh-ed25519 [A-Za-z0-9+/]+=* {MARK}[\w.-]*|")
ADDRESS = re.compile(r"[\w:.%-]*")
FOLDER = re.compile(r"[~/][\w./+@%=,~-]*", re.ASCII)
TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


def with_line(text: str, line: str, folder: str, other_heads: Collection[str] = ()) -> str:
    """Return an authorized_keys file with this line in place of the cluster's earlier lines.

    A line of an earlier version of ftcluster names no folder; it counts as a line of this cluster.

    Args:
        text: content of the file.
        line: the new line; "" only removes lines.
        folder: folder of the mesh, which the cluster's lines name.
        other_heads: addresses of other heads, whose lines stay; "*" stands for all addresses.
    """

    def stays(kept: str) -> bool:
        if not is_of(kept, folder):
            return True
        address = address_of(kept)
        is_other = bool(line) and address not in ("", address_of(line))
        return is_other and ("*" in other_heads or address in other_heads)

    lines = [kept for kept in text.splitlines() if stays(kept) or kept == line]
    if line and line not in lines:
        lines.append(line)
    return "".join(f"{kept}\n" for kept in lines)


def address_of(line: str) -> str:
    """Return the address from which a line of `entry` accepts its key; "" for another line."""
    match = re.match(r'restrict,from="([^"]+)" ', line)
    return match[1] if match else ""


def is_of(line: str, folder: str) -> bool:
    """Return True if a line of authorized_keys is for the head whose mesh is in this folder."""
    mark, comment = line.partition(MARK)[1:]
    return bool(mark) and comment.partition(" ")[2] in ("", folder)


def entry(public_key: str, address: str, folder: str) -> str:
    """Return a line for authorized_keys: it accepts a key from one address, only for commands."""
    return f'restrict,from="{address}" {public_key} {folder}'


def key_of(line: str) -> str:
    """Return the key in a line of a public key file, without comment; "" for unused key types."""
    words = line.split()
    return " ".join(words[:2]) if len(words) >= 2 and words[0] in TYPES else ""


def lines_of(path: Path) -> str | None:
    """Return the text of an authorized_keys file, or None if it does not exist.

    Raises:
        RefusedPath: the file cannot be preserved, because it is not a regular file, is too large or
            is not UTF-8 text.
    """
    found = read_text(path)
    if found and "\ufffd" in found:
        raise RefusedPath(path, "is not UTF-8 text", "correct or remove it, and run this again")
    return found


def host_keys() -> list[str]:
    """Return the host's public keys, without their comments."""
    paths = sorted(Path("/").glob(KEYS.lstrip("/")))
    texts = [path.read_text(encoding="ascii", errors="replace") for path in paths]
    return list(filter(None, map(key_of, texts)))


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "public_key": {"type": "str", "default": "", "no_log": False},
            "address": {"type": "str", "default": ""},
            "folder": {"type": "str", "required": True},
            "other_heads": {"type": "list", "elements": "str", "default": []},
            "state": {"choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    wanted = module.params["state"] == "present"
    forms = (("public_key", PUBLIC_KEY), ("address", ADDRESS), ("folder", FOLDER))
    for name, form in forms:
        if not form.fullmatch(module.params[name]):
            module.fail_json(msg=f"{name} of the head is invalid: {module.params[name][:80]!a}")
    folder = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh"
    path = folder / "authorized_keys"
    try:
        found = lines_of(path)
        before = found or ""
        cluster = module.params["folder"]
        line = entry(module.params["public_key"], module.params["address"], cluster)
        after = with_line(before, line if wanted else "", cluster, module.params["other_heads"])
        changed = before != after
        if changed and not module.check_mode:
            folder.mkdir(mode=0o700, exist_ok=True)
            if after or found is not None:
                write_text(path, after)
        keys = host_keys()
    except OSError as error:
        module.fail_json(msg=os_problem(error, path))
    if wanted and not keys:
        module.fail_json(msg=f"there is no public host key at {KEYS}; install an SSH server")
    module.exit_json(changed=changed, host_keys=keys)


if __name__ == "__main__":
    main()
