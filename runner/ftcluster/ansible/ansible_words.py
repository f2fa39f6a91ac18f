"""Hints for error messages of Ansible that do not say what to do."""

VAULT = "-J asks for the vault's password, --vault-password-file FILE reads it"
PYTHON = (
    "the host needs a Python that runs: install its package python3, or name another Python in the "
    "inventory: ansible_python_interpreter=PATH"
)
NO_ACCOUNT = "the host is not set up, perhaps because it has a new disk: run ftcluster setup"
HINTS = (  # the first that fits
    ("no vault secrets", VAULT),
    ("vault password file", VAULT),
    ("sudo: unknown user", NO_ACCOUNT),
    ("The module interpreter", PYTHON),
    ("Module result deserialization failed", PYTHON),
)


def hint_of(message: str) -> str:
    """Return the hint for an error message of Ansible, or "" if there is none.

    >>> hint_of("Attempting to decrypt but no vault secrets found.")[:2]
    '-J'
    """
    return next((hint for words, hint in HINTS if words in message), "")
