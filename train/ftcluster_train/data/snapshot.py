"""Whether what the Hub's cache has of a model is whole. Standard library only.

The cache renames a file to its place without having it on the disk first, so after a crash of the
machine a file may have its name and not its contents. Its name tells what they should be.
"""

import hashlib
import json
from pathlib import Path

INDEXES = {
    ".safetensors": "model.safetensors.index.json",
    ".bin": "pytorch_model.bin.index.json",
}  # safetensors are preferred
BOOT = Path("/proc/sys/kernel/random/boot_id")


def remove_torn(folder: Path, marks: Path) -> list[str]:
    """Remove the files of a snapshot that are not what they should be, to have them fetched again.

    Files are read once in each boot of the machine.

    Args:
        folder: the snapshot, whose files are links to others that have their hash as name.
        marks: the folder for what is remembered of it.

    Returns:
        The names of those that were removed.
    """
    mark, boot = marks / f".whole-{folder.name}", BOOT.read_text(encoding="ascii")
    if mark.is_file() and mark.read_text(encoding="ascii") == boot:
        return []
    torn = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_whole(path)]
    for path in torn:
        path.resolve().unlink(missing_ok=True)
        path.unlink()
    if not torn:
        marks.mkdir(parents=True, exist_ok=True)
        mark.write_text(boot, encoding="ascii")
    return [str(path.relative_to(folder)) for path in torn]


def _is_whole(link: Path) -> bool:
    blob = link.resolve()
    if not blob.is_file():
        return False
    # large files have the SHA-256 of their contents as name, small ones git's hash of them
    digest = {64: hashlib.sha256, 40: hashlib.sha1}.get(len(blob.name))
    if digest is None:
        return True
    found = digest(b"" if len(blob.name) == 64 else f"blob {blob.stat().st_size}\0".encode())
    with blob.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest() == blob.name


def missing_weights(folder: Path) -> list[str]:
    """The files of weights that the index of those in a folder names, and that are not there.

    >>> missing_weights(Path("/nowhere"))
    []
    """
    for suffix, index in INDEXES.items():
        if any(folder.glob(f"*{suffix}")) and (folder / index).is_file():
            named = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()
            return sorted(name for name in set(named) if not (folder / name).is_file())
    return []
