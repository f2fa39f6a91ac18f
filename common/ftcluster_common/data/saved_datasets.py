"""Finds the files of data sets that `save_to_disk` of the library datasets wrote.

Such a folder contains Arrow files, and `state.json` with their names. The folder of a DatasetDict
contains `dataset_dict.json` with the names of its splits, and a folder for each split. Only data
files in the folder are read, and no code is executed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_common.data.rows import DataError, short
from ftcluster_common.given_files import GivenFileError, read_json

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
ARROW = ".arrow"


def is_saved(path: Path) -> bool:
    """Return True if `save_to_disk` wrote the folder itself or any of its subfolders."""
    return (path / DICT).is_file() or (path / STATE).is_file() or bool(_split_folders(path))


def saved_files(path: Path) -> dict[str, tuple[Path, ...]]:
    """Return the Arrow files of each split; the split of a folder without splits is "".

    Raises:
        DataError: a file is missing or damaged; the message names it.
    """
    if (path / DICT).is_file():
        names = _object(path / DICT).get("splits")
        if not isinstance(names, list) or not names or not all(map(_is_name, names)):
            raise DataError(f"{path / DICT}: splits must be a list of folders, got {short(names)}")
        return {name: _arrow_files(path / name) for name in names}
    if (path / STATE).is_file():
        return {"": _arrow_files(path)}
    return {folder.name: _arrow_files(folder) for folder in _split_folders(path)}


def _split_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    states = (state for state in path.glob(f"*/{STATE}") if state.is_file())
    return sorted(state.parent for state in states if (state.parent / INFO).is_file())


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    state = _object(folder / STATE)
    listed = state.get("_data_files")
    items = listed if isinstance(listed, list) else []
    names = [str(item.get("filename")) for item in items if isinstance(item, dict)]
    if not names or len(names) != len(items) or not all(map(_is_name, names)):
        raise DataError(
            f"{folder / STATE}: _data_files must be a list of files, got {short(listed)}"
        )
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"{folder} selects rows by index, which only old releases of datasets save: call "
            "flatten_indices() on the data set, and save it again"
        )
    files = tuple(folder / name for name in names)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{folder}: files that {STATE} lists are missing: {', '.join(missing)}")
    return files


def _is_name(name: Any) -> bool:
    """Return True if a value is the name of a file or folder within its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def _object(path: Path) -> Mapping[str, Any]:
    try:
        document = read_json(path)
    except GivenFileError as error:
        raise DataError(str(error)) from error
    if not isinstance(document, dict):
        raise DataError(f"{path} is not a JSON object")
    return document
