"""Plain texts and hints for error messages of Ansible that give no advice."""

import re

VAULT = "pass the vault's password with -J, which asks for it, or with --vault-password-file FILE"
PYTHON = (
    "the host needs a Python that runs: install its package python3, or name a Python that exists "
    "there in the inventory: ansible_python_interpreter=PATH"
)
NO_PYTHON = re.compile(
    r"(?:Task failed: )?The module interpreter '([^'\n]+)' was not found\.?(?:\n[^\n]*not found)*"
)
NO_ACCOUNT = "the host is not set up, perhaps because it has a new disk: run ftcluster setup"
HINTS = (  # the first that fits
    ("no vault secrets", VAULT),
    ("vault password file", VAULT),
    ("sudo: unknown user", NO_ACCOUNT),
    ("The module interpreter", PYTHON),
    ("there is no Python at", PYTHON),
    ("Module result deserialization failed", PYTHON),
)


def plain(message: str) -> str:
    """Return Ansible's message about a missing Python in plain words; other messages unchanged.

    >>> plain("The module interpreter '/usr/bin/python3' was not found.")
    'there is no Python at /usr/bin/python3'
    """
    return NO_PYTHON.sub(r"there is no Python at \1", message)


def hint_of(message: str) -> str:
    """Return the hint for an error message of Ansible, or "" if there is none.

    >>> hint_of("Attempting to decrypt but no vault secrets found.")[:4]
    'pass'
    """
    return next((hint for words, hint in HINTS if words in message), "")
