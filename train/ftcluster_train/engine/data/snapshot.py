"""Checks a model in the Hub's cache. Standard library only.

The cache renames files without syncing them, so after a crash of the machine a file may have its
name but not its contents. The name is a hash of the contents.
"""

import hashlib
from pathlib import Path

from ftcluster_common.given_files import read_json

INDEXES = {
    ".safetensors": "model.safetensors.index.json",
    ".bin": "pytorch_model.bin.index.json",
}  # safetensors are preferred
BOOT = Path("/proc/sys/kernel/random/boot_id")


def remove_torn(folder: Path, marks: Path) -> list[str]:
    """Remove files of a snapshot whose hash is wrong, to have them downloaded again.

    Files are read once per boot of the machine.

    Args:
        marks: the folder for the mark that a snapshot was checked.

    Returns:
        The names of the removed files.
    """
    mark, boot = marks / f".whole-{folder.name}", BOOT.read_text(encoding="ascii")
    if mark.is_file() and mark.read_text(encoding="ascii") == boot:
        return []
    torn = [
        path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_intact(path)
    ]
    blobs = folder.resolve().parent.parent / "blobs"
    for path in torn:
        blob = path.resolve()
        if blob.parent == blobs and not blob.is_dir():  # a link may lead elsewhere
            blob.unlink(missing_ok=True)
        path.unlink()
    if not torn:
        marks.mkdir(parents=True, exist_ok=True)
        mark.write_text(boot, encoding="ascii")
    return [str(path.relative_to(folder)) for path in torn]


def _is_intact(link: Path) -> bool:
    blob = link.resolve()
    if not blob.is_file():
        return False
    # the name of a large file is its SHA-256, of a small one git's hash
    digest = {64: hashlib.sha256, 40: hashlib.sha1}.get(len(blob.name))
    if digest is None:
        return True
    found = digest(b"" if len(blob.name) == 64 else f"blob {blob.stat().st_size}\0".encode())
    with blob.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest() == blob.name


def missing_weights(folder: Path) -> list[str]:
    """The files of weights in a folder's index that do not exist, or that index if damaged."""
    for suffix, index in INDEXES.items():
        if any(folder.glob(f"*{suffix}")) and (folder / index).is_file():
            try:
                named = set(read_json(folder / index)["weight_map"].values())
                return sorted(name for name in named if not (folder / name).is_file())
            except (ValueError, LookupError, TypeError, AttributeError):  # it is damaged
                return [index]
    return []
