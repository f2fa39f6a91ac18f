#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The head's side of the SSH mesh: its key, and whom it trusts.

A module of our own, because ansible-core has none that makes keys (openssh_keypair is of
community.crypto), its known_hosts changes one line a task and takes what this module refuses, and
ssh_config has to keep the hosts that --limit leaves out.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_head
short_description: The head's key, known hosts and SSH configuration for a cluster
description:
  - Keeps everything that the head needs to reach the other hosts in one folder, apart from the
    user's own SSH settings. C(ssh -F <folder>/ssh_config NAME) uses it.
  - Makes an Ed25519 key unless there is one. The private key never leaves the head.
  - Trusts the host keys it is given and no others.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.changes
  - ftcluster.cluster.attributes.texts
options:
  folder:
    description: The folder, made if missing. Only its owner can read what is in it.
    type: path
    required: true
  address:
    description:
      - The head's address that the hosts see it come from. Left out, the one from the last time.
    type: str
    default: ""
  members:
    description:
      - The hosts. Those that are known from before and are not in it are kept if O(names) has them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The inventory's name.
        type: str
        required: true
      address:
        description: The address that the head reaches it by.
        type: str
        required: true
      port:
        description: The port of its SSH server.
        type: int
        default: 22
      user:
        description: The account that runs ranks there.
        type: str
        required: true
      host_keys:
        description: Public host keys, as C(TYPE BASE64).
        type: list
        elements: str
        required: true
  names:
    description: All hosts of the inventory; others are forgotten.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Make the head's key
  ftcluster.cluster.mesh_head:
    folder: /opt/ftcluster/mesh
  register: head
"""

RETURN = r"""
public_key:
  description: The head's public key, C(TYPE BASE64 COMMENT); empty in check mode before it is made.
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
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    difference,
    read_text,
    write_text,
)

if TYPE_CHECKING:
    Members = Sequence[Mapping[str, Any]]  # as the option `members` has them

KEY = "id_ed25519"
RECORD = "mesh.json"
FORMAT = 1  # of RECORD; one without the number has format 0
# A host without power says nothing: these end a connection to it in seconds instead of minutes.
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


# a word of ssh_config and of known_hosts, and a public key; hosts answer with the latter
WORD = re.compile(r"[^\s\x00-\x1f\x7f*?!,\"#]+")
PUBLIC_KEY = re.compile(r"[a-z0-9-]+ [A-Za-z0-9+/]+=*")


class NewerFormat(Exception):
    """A newer ftcluster has written the record."""


def wrong_words(members: Members) -> list[str]:
    """Sentences on what would be read as something else, or as another line."""
    wrong = [
        f"{key} of {member['name']!a} is {member[key]!a}"
        for member in members
        for key in ("name", "address", "user")
        if not WORD.fullmatch(member[key])
    ]
    return wrong + [
        f"{member['name']!a} has the host key {key[:60]!a}"
        for member in members
        for key in member["host_keys"]
        if not PUBLIC_KEY.fullmatch(key)
    ]


def known_hosts(members: Members) -> str:
    """The text of a known_hosts file: each host under its name and its address."""
    lines = []
    for member in members:
        names = dict.fromkeys([member["name"], member["address"]])
        port = member["port"]
        patterns = ",".join(name if port == 22 else f"[{name}]:{port}" for name in names)
        lines += [f"{patterns} {key}\n" for key in sorted(member["host_keys"])]
    return "".join(lines)


def ssh_config(members: Members, folder: Path, address: str) -> str:
    """The text of an ssh_config file."""
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
    if address:  # the hosts let in this address only
        lines.append(f"  BindAddress {address}\n")
    lines += [f"  {key} {value}\n" for key, value in SETTINGS.items()]
    return "".join(lines)


def merged(known: Members, given: Members, names: Iterable[str]) -> list[Mapping[str, Any]]:
    """Members by the inventory's order: new ones instead of known ones of the same name."""
    by_name = {member["name"]: member for member in [*known, *given]}
    return [by_name[name] for name in names if name in by_name]


def texts_of(members: Members, folder: Path, address: str) -> dict[str, str]:
    """The files that say whom the head trusts, by name."""
    return {
        "known_hosts": known_hosts(members),
        "ssh_config": ssh_config(members, folder, address),
        RECORD: json.dumps({"format": FORMAT, "address": address, "members": members}, indent=1)
        + "\n",
    }


def parse_mesh(text: str | None, path: Path) -> dict[str, Any]:
    """What the text of mesh.json says of the mesh; empty where there is none.

    Raises:
        ValueError: it is something else.
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
            f"{path} is no record of the mesh: remove it and run ftcluster setup without --limit"
        )
    found.pop("format", None)
    return found


def make_key(module: Any, folder: Path) -> None:
    """Make the key pair, the private half last, so that one that is there is whole."""
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
        module.fail_json(msg=f"not what the mesh can write down: {'; '.join(wrong)}")
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
        module.fail_json(msg=f"{error.filename or folder}: {error.strerror}")
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, diff=diff, public_key=public_key, address=address)


if __name__ == "__main__":
    main()
