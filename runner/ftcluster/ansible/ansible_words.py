"""Plain wording and hints for Ansible's error messages, which often give no advice."""

import re

VAULT = "pass -J to type the vault password, or --vault-password-file FILE to read it from a file"
PYTHON = (
    "the host needs a working Python: install the package python3 on the host, or set "
    "ansible_python_interpreter=PATH in the inventory to a Python that exists there"
)
NO_PYTHON = re.compile(
    r"(?:Task failed: )?The module interpreter '([^'\n]+)' was not found\.?(?:\n[^\n]*not found)*"
)
NO_ACCOUNT = "the host is not set up; perhaps it was reinstalled: run ftcluster setup"
HINTS = (  # part of a message, and its hint; the first entry that matches a message is used
    ("no vault secrets", VAULT),
    ("vault password file", VAULT),
    ("sudo: unknown user", NO_ACCOUNT),
    ("The module interpreter", PYTHON),
    ("there is no Python at", PYTHON),
    ("Module result deserialization failed", PYTHON),
)


def plain(message: str) -> str:
    """Reword Ansible's message about a missing Python; return any other message unchanged.

    >>> plain("The module interpreter '/usr/bin/python3' was not found.")
    'there is no Python at /usr/bin/python3'
    """
    return NO_PYTHON.sub(r"there is no Python at \1", message)


def hint_of(message: str) -> str:
    """Return the hint for one of Ansible's error messages, or "" if there is no hint.

    >>> hint_of("Attempting to decrypt but no vault secrets found.")[:4]
    'pass'
    """
    return next((hint for words, hint in HINTS if words in message), "")
