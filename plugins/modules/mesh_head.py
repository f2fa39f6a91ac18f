#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Manages the SSH mesh on the head: the head's key, and the hosts that the head trusts.

ansible-core's modules are not sufficient: none creates keys (openssh_keypair is in
community.crypto), and known_hosts changes one line per task and accepts lines that this module
rejects. In addition, ssh_config must keep the hosts that --limit excludes.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_head
short_description: Manages the head's key, known hosts and SSH configuration for a cluster
description:
  - Keeps everything that the head needs to reach the other hosts in one folder, apart from the
    user's own SSH settings. C(ssh -F <folder>/ssh_config NAME) uses this folder.
  - Creates an Ed25519 key if there is none. The private key never leaves the head.
  - Trusts only the host keys in O(members).
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.changes
  - ftcluster.cluster.attributes.texts
options:
  folder:
    description: The folder; it is created if missing. Only its owner can read its files.
    type: path
    required: true
  address:
    description:
      - The source address of the head's connections, as the hosts see it. The default is the saved
        address.
    type: str
    default: ""
  members:
    description:
      - The hosts to add or change. Hosts from earlier calls are kept if O(names) lists them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The inventory name.
        type: str
        required: true
      address:
        description: The address at which the head reaches the host.
        type: str
        required: true
      port:
        description: The port of the host's SSH server.
        type: int
        default: 22
      user:
        description: The account that runs ranks on the host.
        type: str
        required: true
      host_keys:
        description: Public host keys in the form C(TYPE BASE64).
        type: list
        elements: str
        required: true
  names:
    description: All hosts of the inventory. Other hosts are removed.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Create the head's key
  ftcluster.cluster.mesh_head:
    folder: /opt/ftcluster/mesh
  register: head
"""

RETURN = r"""
public_key:
  description: The head's public key, C(TYPE BASE64 COMMENT); empty in check mode before it exists.
  returned: success
  type: str
address:
  description: The head's address.
  returned: success
  type: str
"""

import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import os_problem
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    difference,
    read_text,
    write_text,
)

if TYPE_CHECKING:
    Members = Sequence[Mapping[str, Any]]  # in the form of the option `members`

KEY = "id_ed25519"
RECORD = "mesh.json"
FORMAT = 1  # format of RECORD; a record without a format number has format 0
# With these timeouts, a connection to a host without power ends in seconds instead of minutes.
SETTINGS = {
    "BatchMode": "yes",
    "ConnectTimeout": "5",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "GlobalKnownHostsFile": "none",
    "IdentitiesOnly": "yes",
    "PasswordAuthentication": "no",
    "PermitLocalCommand": "no",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "5",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
}


# patterns of a word in ssh_config and known_hosts, and of a public key that a host reports
WORD = re.compile(r"[^\s\x00-\x1f\x7f*?!,\"#]+")
PUBLIC_KEY = re.compile(r"[a-z0-9-]+ [A-Za-z0-9+/]+=*")


class NewerFormat(Exception):
    """A newer ftcluster has written the record."""


def wrong_words(members: Members) -> list[str]:
    """Return errors for values that ssh would misread, for example because of a line break."""
    wrong = [
        f"{key} of {member['name']!a} is {member[key]!a}"
        for member in members
        for key in ("name", "address", "user")
        if not WORD.fullmatch(member[key])
    ]
    return wrong + [
        f"a host key of {member['name']!a} is {key[:60]!a}"
        for member in members
        for key in member["host_keys"]
        if not PUBLIC_KEY.fullmatch(key)
    ]


def known_hosts(members: Members) -> str:
    """Return the text of a known_hosts file with the name and address of each host."""
    lines = []
    for member in members:
        names = dict.fromkeys([member["name"], member["address"]])
        port = member["port"]
        patterns = ",".join(name if port == 22 else f"[{name}]:{port}" for name in names)
        lines += [f"{patterns} {key}\n" for key in sorted(member["host_keys"])]
    return "".join(lines)


def ssh_config(members: Members, folder: Path, address: str) -> str:
    """Return the text of an ssh_config file."""
    lines = ["# Written by ftcluster; changes are overwritten.\n"]
    for member in members:
        names = " ".join(dict.fromkeys([member["name"], member["address"]]))
        lines += [
            f"Host {names}\n",
            f"  HostName {member['address']}\n",
            f"  Port {member['port']}\n",
            f"  User {member['user']}\n",
        ]
    lines += ["Host *\n", f"  IdentityFile {folder / KEY}\n"]
    lines += [f"  UserKnownHostsFile {folder / 'known_hosts'}\n"]
    if address:  # the hosts accept only connections from this address
        lines.append(f"  BindAddress {address}\n")
    lines += [f"  {key} {value}\n" for key, value in SETTINGS.items()]
    return "".join(lines)


def merged(known: Members, given: Members, names: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the members in the inventory's order; new members replace known ones by name."""
    by_name = {member["name"]: member for member in [*known, *given]}
    return [by_name[name] for name in names if name in by_name]


def texts_of(members: Members, folder: Path, address: str) -> dict[str, str]:
    """Return the text of each file that defines which hosts the head trusts, by file name."""
    return {
        "known_hosts": known_hosts(members),
        "ssh_config": ssh_config(members, folder, address),
        RECORD: json.dumps({"format": FORMAT, "address": address, "members": members}, indent=1)
        + "\n",
    }


def parse_mesh(text: str | None, path: Path) -> dict[str, Any]:
    """Parse the text of mesh.json; return {} if there is no file.

    Raises:
        ValueError: the text is not a valid mesh.json.
    """
    found: dict[str, Any] = {}
    try:
        found = json.loads(text or "{}")
        members = found.get("members", [])
        if found.get("format", 0) not in range(FORMAT + 1):
            raise NewerFormat
        right = isinstance(found.get("address", ""), str) and all(
            isinstance(member["port"], int)
            and all(isinstance(word, str) for word in member["host_keys"])
            and not wrong_words([member])
            for member in members
        )
    except NewerFormat:
        raise ValueError(
            f"{path} was written by a newer ftcluster (format {found['format']!a:.40}, this one "
            f"reads up to {FORMAT}): upgrade this ftcluster"
        ) from None
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise ValueError(
            f"{path} is not a valid record: remove it and run ftcluster setup without --limit"
        )
    found.pop("format", None)
    return found


def make_key(module: Any, folder: Path) -> None:
    """Create the key pair, the private key last: if it exists, the pair is complete."""
    new = folder / f"{KEY}.new"
    for path in (new, folder / f"{KEY}.new.pub"):
        path.unlink(missing_ok=True)
    comment = f"ftcluster-mesh@{socket.gethostname()}"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(new)]
    code, out, err = module.run_command(argv)
    if code != 0:
        module.fail_json(msg=f"ssh-keygen failed: {(err or out).strip()}")
    (folder / f"{KEY}.new.pub").replace(folder / f"{KEY}.pub")
    new.replace(folder / KEY)


def main() -> None:
    """Ansible's entry point."""
    member = {
        "name": {"type": "str", "required": True},
        "address": {"type": "str", "required": True},
        "port": {"type": "int", "default": 22},
        "user": {"type": "str", "required": True},
        "host_keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "address": {"type": "str", "default": ""},
            "members": {"type": "list", "elements": "dict", "default": [], "options": member},
            "names": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    wrong = wrong_words(module.params["members"])
    if wrong:
        module.fail_json(msg=f"invalid values for the mesh: {'; '.join(wrong)}")
    folder = Path(module.params["folder"])
    changed, diff = False, []
    try:
        before = parse_mesh(read_text(folder / RECORD), folder / RECORD)
        address = module.params["address"] or before.get("address", "")
        if not folder.is_dir():
            changed = True
            if not module.check_mode:
                folder.mkdir(mode=0o700, parents=True)
        if read_text(folder / KEY) is None or read_text(folder / f"{KEY}.pub") is None:
            changed = True
            if not module.check_mode:
                make_key(module, folder)
        if module.params["members"]:
            known = before.get("members", [])
            members = merged(known, module.params["members"], module.params["names"])
            for name, text in texts_of(members, folder, address).items():
                found = read_text(folder / name)
                if found != text:
                    changed = True
                    diff.append(difference(folder / name, found, text))
                    if not module.check_mode:
                        write_text(folder / name, text)
        public_key = (read_text(folder / f"{KEY}.pub") or "").strip()
    except OSError as error:
        module.fail_json(msg=os_problem(error, folder))
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, diff=diff, public_key=public_key, address=address)


if __name__ == "__main__":
    main()
