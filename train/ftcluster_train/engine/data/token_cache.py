"""Cache of tokenised data sets on a host, for later runs with the same data.

PREFIX/cache/tokens contains a folder for each entry. The name of the folder is a hash of everything
that determines the tokens. A folder that exists is complete. Standard library only.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster_train.io.fsync import sync_tree
from ftcluster_train.io.scratch import scratch_folder

KEPT_SETS = 8  # maximum number of entries; the least recently used entries are removed
NOTICES_FILE = "notices.json"
# weights and compiled Python files do not affect the tokens
NO_TOKEN_FILES = frozenset({".bin", ".h5", ".msgpack", ".onnx", ".pt", ".pyc", ".safetensors"})


def token_key(settings: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """Return a hash of everything that determines the tokens.

    Args:
        folders: folders or files with code, data and tokenizer; the names and bytes of all relevant
            files are hashed.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for number, folder in enumerate(folders):
        files = (path for path in (folder, *folder.rglob("*")) if path.is_file())
        for path in sorted(path for path in files if path.suffix not in NO_TOKEN_FILES):
            digest.update(f"\n{number} {path.relative_to(folder)} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()


def cached_tokens(
    cache: Path, key: str, make: Callable[[Path], list[str]]
) -> tuple[Path, list[str]]:
    """Return the folder of the token samples, and notices; create the samples if necessary.

    Args:
        make: function that writes the samples into an empty folder and returns notices.
    """
    folder = cache / key
    if not (folder / NOTICES_FILE).is_file():
        with scratch_folder(cache, key) as partial:
            notices = make(partial)
            (partial / NOTICES_FILE).write_text(json.dumps(notices), encoding="utf-8")
            sync_tree(partial)
            if not folder.exists():  # another run may have made the same entry
                partial.rename(folder)
    os.utime(folder)
    remove_least_recent(cache, KEPT_SETS, folder)
    notices = json.loads((folder / NOTICES_FILE).read_text(encoding="utf-8"))
    return folder, notices


def remove_least_recent(cache: Path, kept: int, latest: Path) -> None:
    """Remove all but the most recently used entries of a folder.

    Args:
        kept: maximum number of entries to keep.
        latest: entry that is in use. It is kept even if all other entries seem more recent because
            the clock was set back.
    """
    entries = [path for path in cache.iterdir() if not path.name.startswith(".")]
    others = [path for path in entries if path != latest]
    for entry in sorted(others, key=lambda path: -path.stat().st_mtime)[kept - 1 :]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
