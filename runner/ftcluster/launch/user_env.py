"""Read the user's variables for the ranks: `--env NAME=VALUE`, or `--env NAME`.

NAME alone passes the variable's local value and treats it as a secret, like the token for the Hub.
Secret values are written to a file that only the ranks' account can read. They are never in a
record, a command line or a log.
"""

import os
import re
from collections.abc import Mapping, Sequence

from ftcluster.errors import UsageError
from ftcluster_common.protocol.launch import may_hold_credentials

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_BYTES = 32 << 10  # maximum length of a value; the kernel's limit is 128 KiB
# refused names, and the reasons
REFUSED = {
    r"FTCLUSTER_\w*": "ftcluster sets it for the ranks",
    r"I_MPI_\w*|HYDRA_\w*|PMI_\w*": "ftcluster sets it for mpirun",
    r"LD_\w*|GLIBC_TUNABLES": "it affects every program's libraries; the plan sets the allocator",
    "PATH|PYTHON(PATH|HOME|STARTUP|USERBASE)": "the stack sets it",
    r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_\w*|TORCHELASTIC_\w*": (
        "each rank has its own value"
    ),
    r"OMP_\w*|KMP_\w*|GOMP_\w*": "the plan assigns cores to ranks; use --ranks-per-host",
    r"SLURM_\w*": "Slurm sets it",
    r"HF_TOKEN(_PATH)?|HUGGING_FACE_HUB_TOKEN": "pass the Hub's token with --hf-token",
}


def read_env(
    words: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the plain variables, and the secret variables, which have local values.

    Args:
        words: arguments of `--env`: NAME=VALUE or NAME.
        environ: environment variables of this process.

    Raises:
        UsageError: variables are refused; the message lists all of them, without their values.
    """
    plain: dict[str, str] = {}
    secret: dict[str, str] = {}
    problems = []
    for word in words:
        name, equals, value = word.partition("=")
        value = value if equals else environ.get(name, "")
        if name in (plain if equals else secret):
            problems.append(f"--env {name}: set twice; set it only once")
        if why := _problem(name, value, bool(equals), name in environ):
            problems.append(f"--env {name if NAME.fullmatch(name) else 'NAME'}: {why}")
        else:
            (plain if equals else secret)[name] = value
    if twice := plain.keys() & secret.keys():
        problems.append(
            f"--env {', '.join(sorted(twice))}: passed both with and without a value; choose one"
        )
    if problems:
        raise UsageError("\n  ".join(problems))
    return plain, secret


def _problem(name: str, value: str, has_value: bool, is_set: bool) -> str:
    """Return the reason why a variable is refused; "" if it is accepted.

    Args:
        has_value: True if the command line contains the value.
        is_set: True if the variable is set on this machine.
    """
    if not NAME.fullmatch(name):
        return "a name consists of letters, digits and underscores: NAME=VALUE, or NAME"
    if why := next((why for names, why in REFUSED.items() if re.fullmatch(names, name)), ""):
        return f"cannot be set: {why}"
    if has_value and may_hold_credentials(name, value):
        return (
            "it may contain a credential, and other users can read command lines: set it on this "
            f"machine, and pass --env {name} without a value"
        )
    if not has_value and not is_set:
        return "the variable is not set on this machine"
    if len(value.encode(errors="surrogateescape")) > MOST_BYTES:
        return f"the value is longer than {MOST_BYTES:,} bytes"
    wrong = {"\0", *("\n\r" if has_value else "")} & {*value}
    return "the value contains a line break or NUL" if wrong else ""
