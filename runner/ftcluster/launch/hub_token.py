"""Find the user's token for the Hugging Face Hub, which `--hf-token` sends to a run's hosts."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ftcluster.errors import UsageError


def find_token(environ: Mapping[str, str] = os.environ, option: str = "--hf-token") -> str:
    """Return the token from the environment variables and files that huggingface_hub reads.

    Args:
        environ: environment variables.
        option: name of the option that needs the token, for messages.

    Raises:
        UsageError: there is no token, or it is malformed.
    """
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    where = "HF_TOKEN"
    if not token:
        cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        home = environ.get("HF_HOME") or Path(cache) / "huggingface"
        path = Path(environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
        where = str(path)
        try:
            token = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            raise UsageError(
                f"{option}: HF_TOKEN is not set, and there is no {path}",
                "run hf auth login, or set HF_TOKEN for this command",
            ) from None
    token = token.strip()
    if not re.fullmatch(r"[\w.-]+", token, re.ASCII):
        raise UsageError(f"{option}: {where} does not contain a valid token", "run hf auth login")
    return token
