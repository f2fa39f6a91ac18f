#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Finds missing packages and the lock's holder, for the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Installs packages of the distribution, and waits for the package manager's lock
description:
  - Installs missing packages with M(ansible.builtin.apt), M(ansible.builtin.dnf) or
    M(ansible.builtin.dnf5). Installed packages are not upgraded, and nothing is removed.
  - While another process holds a lock of apt, dpkg, dnf or rpm, waits for O(lock_seconds). Then the
    module fails and names the process.
  - If one of apt's sources does not respond, the existing lists of packages are used.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.options.from_action
options:
  names:
    description: Names of the packages.
    type: list
    elements: str
    required: true
  manager:
    description: The package manager, as in the fact C(pkg_mgr).
    type: str
    choices: [apt, dnf, dnf5]
    required: true
  lock_seconds:
    description: Time to wait for the package manager's locks, in seconds.
    type: int
    default: 300
attributes:
  check_mode:
    description: Reports which packages are missing. Does not test whether they can be installed.
    support: full
"""

EXAMPLES = r"""
- name: Install nftables
  ftcluster.cluster.packages:
    names: [nftables]
    manager: apt
  become: true
"""

RETURN = r"""
missing:
  description: The packages that were not installed before.
  returned: success
  type: list
  elements: str
holder:
  description: The process that holds a lock, in words; empty if all locks are free.
  returned: when packages are missing
  type: str
  sample: process 812 (/usr/bin/unattended-upgrade) holds /var/lib/dpkg/lock-frontend
"""

import time
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.package_locks import (
    Holder,
    find_holder,
)

POLL_SECONDS = 0.5
INSTALLED = "install ok installed"  # dpkg-query(1), Status


def query(manager: str, name: str) -> list[str]:
    """Return the command that shows if a package is installed."""
    if manager == "apt":
        return ["dpkg-query", "--show", "--showformat", "${Status}", "--", name]
    return ["rpm", "--query", "--whatprovides", "--", name]


def is_installed(module: Any, manager: str, name: str) -> bool:
    """Return True if a package of this name is installed; False if that is uncertain."""
    code, out, _ = module.run_command(query(manager, name))
    return code == 0 and (manager != "apt" or out.strip() == INSTALLED)


def missing_packages(module: Any, manager: str, names: Sequence[str]) -> list[str]:
    """Return the packages that are not installed, in the given order."""
    return [name for name in names if not is_installed(module, manager, name)]


def wait(seconds: float) -> Holder | None:
    """Wait until all locks are free; return the holder if the time runs out first.

    Raises:
        OSError: a lock's file cannot be read.
    """
    deadline = time.monotonic() + seconds
    while (holder := find_holder()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holder


def main() -> None:
    """Ansible's entry point; the action plugin calls it to find packages and to wait."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "manager": {"choices": ["apt", "dnf", "dnf5"], "required": True},
            "lock_seconds": {"type": "int", "default": 300},
            "from_action": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    missing = missing_packages(module, module.params["manager"], module.params["names"])
    seconds = float((module.params["from_action"] or {}).get("seconds", 0))
    try:
        holder = wait(seconds) if missing and not module.check_mode else None
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=False, missing=missing, holder=str(holder or ""))


if __name__ == "__main__":
    main()
